"""Starts one container's process inside its cgroups, supervises it as its shim, and records its exit.

Run as a script, `python -I -S launcher.py run CONFIG.json`, with only the standard library, so that
it starts in milliseconds and uses little memory. It forks into its own session, so that the kubelet may be
killed and restarted while containers run:

* the container's process writes its own pid into every cgroup.procs file before exec, so that no instruction
  of the command runs outside its cgroups;
* the shim is the subreaper of the container: orphaned processes become its children and are reaped;
* output is written line by line to a log in the CRI format (`<RFC 3339> stdout F <line>`), rotated by size;
* when the main process exits, the shim kills the other processes of the cgroup (there is no pid namespace that
  would do it) and writes exit.json by rename, so that a reader never sees a partial file.

`run` prints one JSON line when the command is running ({"pid", "shim_pid", …}) or has failed to start
({"error", "code"}), and exits. With `"supervise": false` (the sandbox's pause process) no shim remains.
`exec CONFIG.json` joins the same cgroups and executes the command: for probes and hooks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all other imports here
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Config = dict[str, Any]

PR_SET_CHILD_SUBREAPER = 36
LINE_LIMIT_BYTES = 16 * 1024
KILL_ATTEMPTS = 200


def starttime(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat, which together with the pid identifies a process; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:  # noqa: PTH123 - pathlib costs start-up time
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def write_json(path: str, value: object) -> None:
    """Replace the file atomically: write a temporary file, fsync, rename."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, json.dumps(value).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".tmp", path)  # noqa: PTH104


def rfc3339(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


class ContainerLog:
    """Appends CRI log lines; at `limit` bytes it renames 0.log -> 0.log.1 -> … and starts a new file."""

    def __init__(self, path: str, limit: int, files: int) -> None:
        self.path = path
        self.limit = limit
        self.files = files
        self.partial = {"stdout": b"", "stderr": b""}
        self.fd = -1
        self.size = 0
        self.open()

    def open(self) -> None:
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self.fd).st_size

    def rotate(self) -> None:
        os.close(self.fd)
        self.fd = -1  # in case that open fails
        for i in range(self.files - 2, -1, -1):
            old = f"{self.path}.{i}" if i else self.path
            with contextlib.suppress(FileNotFoundError):
                os.rename(old, f"{self.path}.{i + 1}")  # noqa: PTH104
        if self.files == 1:
            os.unlink(self.path)  # noqa: PTH108
        self.open()

    def line(self, stream: str, tag: str, data: bytes) -> None:
        record = f"{rfc3339(time.time_ns())} {stream} {tag} ".encode() + data + b"\n"
        with contextlib.suppress(OSError):  # a full disk must not stop the container
            if self.fd < 0:
                self.open()
            elif self.size and self.size + len(record) > self.limit:
                self.rotate()
            self.size += os.write(self.fd, record)

    def feed(self, stream: str, data: bytes) -> None:
        data = self.partial[stream] + data
        *lines, rest = data.split(b"\n")
        for line in lines:
            while len(line) > LINE_LIMIT_BYTES:
                self.line(stream, "P", line[:LINE_LIMIT_BYTES])
                line = line[LINE_LIMIT_BYTES:]
            self.line(stream, "F", line)
        while len(rest) > LINE_LIMIT_BYTES:
            self.line(stream, "P", rest[:LINE_LIMIT_BYTES])
            rest = rest[LINE_LIMIT_BYTES:]
        self.partial[stream] = rest

    def close(self) -> None:
        for stream, rest in self.partial.items():
            if rest:
                self.line(stream, "F", rest)
        if self.fd >= 0:
            os.close(self.fd)


class ContainerStartFailed(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def become(config: Config) -> NoReturn:
    """Join the cgroups, change to the user, exec. Raises ContainerStartFailed."""
    step = "join cgroup"
    argv = config["argv"]
    try:
        for path in config["procs"]:
            fd = os.open(path, os.O_WRONLY)
            os.write(fd, b"0")
            os.close(fd)
        if config.get("oom_score_adj") is not None:
            step = "set oom_score_adj"
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            # Lowering it needs CAP_SYS_RESOURCE; without it the process keeps the kubelet's value.
            with contextlib.suppress(PermissionError):
                os.write(fd, str(config["oom_score_adj"]).encode())
            os.close(fd)
        step = "chdir to " + (config.get("cwd") or "/")
        os.chdir(config.get("cwd") or "/")
        step = "set user"
        user, group = config.get("user"), config.get("group")
        if user is not None or group is not None:
            os.setgroups([])
            os.setgid(group if group is not None else 0)
        if user is not None:
            os.setuid(user)
        step = "exec"
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(argv[0], argv, config["env"])
    except OSError as error:
        if step == "exec":
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                where = "no such file or directory" if "/" in argv[0] else "executable file not found in $PATH"
                raise ContainerStartFailed(f'exec: "{argv[0]}": {where}', 127) from error
            raise ContainerStartFailed(
                f'exec: "{argv[0]}": {os.strerror(error.errno or errno.EIO).lower()}', 126
            ) from error
        raise ContainerStartFailed(f"{step}: {error}", 128) from error


def failing(write_fd: int, config: Config) -> NoReturn:
    """Body of a forked child: execute the command, or write the error to `write_fd` and exit."""
    code = 128
    try:
        become(config)
    except ContainerStartFailed as error:
        code = error.code
        os.write(write_fd, json.dumps({"error": str(error), "code": code}).encode())
    finally:
        os._exit(code)


def read_all(fd: int) -> bytes:
    out = b""
    while chunk := os.read(fd, 65536):
        out += chunk
    return out


def kill_rest(procs: list[str]) -> None:
    """SIGKILL all processes of these cgroups until there is none; at most 2 s, for one stuck in the kernel."""
    for _ in range(KILL_ATTEMPTS):
        left: set[int] = set()
        for path in procs:
            with contextlib.suppress(OSError), open(path) as f:  # noqa: PTH123
                left.update(int(p) for p in f.read().split())
        left.discard(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(None)
        time.sleep(0.01)


def reap(main: int | None) -> int | None:
    """Reap exited children; returns the wait status of `main` if it is one of them."""
    main_status = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return main_status
        if pid == 0:
            return main_status
        if pid == main:
            main_status = status


def redirect(stdin: int, stdout: int, stderr: int) -> None:
    for fd, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, target)


def supervise(config: Config, ready: int) -> NoReturn:
    """The shim: start the container, copy its output, wait for its exit and record it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    out = {"stdout": os.pipe2(os.O_CLOEXEC), "stderr": os.pipe2(os.O_CLOEXEC)}
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    folder = config["dir"]
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        os.setsid()
        redirect(null, out["stdout"][1], out["stderr"][1])
        failing(err_write, config)
    redirect(null, null, null)
    for fd in (err_write, out["stdout"][1], out["stderr"][1]):
        os.close(fd)
    failure = read_all(err_read)
    if failure:
        os.waitpid(child, 0)
        result = json.loads(failure)
        write_json(folder + "/exit.json", {**result, "finished_at": time.time_ns()})
        os.write(ready, json.dumps(result).encode())
        os._exit(0)
    started = {
        "pid": child,
        "pid_starttime": starttime(child),
        "shim_pid": os.getpid(),
        "shim_starttime": starttime(os.getpid()),
        "started_at": time.time_ns(),
    }
    write_json(folder + "/started.json", started)
    os.write(ready, json.dumps(started).encode())
    os.close(ready)

    log = ContainerLog(config["log"], config["log_max_bytes"], config["log_files"])
    streams = {out["stdout"][0]: "stdout", out["stderr"][0]: "stderr"}
    poll = select.poll()
    for fd in (*streams, wake_read):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    status = None
    while status is None:
        for fd, _ in poll.poll():
            if fd == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
                status = reap(child)
            elif not pump(fd, streams[fd], log):
                poll.unregister(fd)
    finished = time.time_ns()
    kill_rest(config["procs"])
    for fd, stream in streams.items():
        while pump(fd, stream, log):
            continue
    log.close()
    code = os.waitstatus_to_exitcode(status)
    write_json(
        folder + "/exit.json",
        {"code": 128 - code if code < 0 else code, "signal": -code if code < 0 else 0, "finished_at": finished},
    )
    os._exit(0)


def pump(fd: int, stream: str, log: ContainerLog) -> bool:
    """Copy one chunk; False at the end of the stream or when no data is available."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return False
    log.feed(stream, data)
    return bool(data)


def run(config: Config) -> int:
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        if config.get("supervise", True):
            try:
                supervise(config, ready_write)
            finally:  # after an error the child must not continue with the parent's code
                os._exit(70)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        redirect(null, null, null)
        failing(ready_write, config)
    os.close(ready_write)
    result = read_all(ready_read)
    if result:
        sys.stdout.write(result.decode() + "\n")
        return 0
    if config.get("supervise", True):
        sys.stdout.write(json.dumps({"error": "the shim ended before the command ran", "code": 128}) + "\n")
        return 0
    started = {"pid": child, "pid_starttime": starttime(child), "started_at": time.time_ns()}
    write_json(config["dir"] + "/started.json", started)
    sys.stdout.write(json.dumps(started) + "\n")
    return 0


def main(argv: list[str]) -> int:
    # Some event loops let a child inherit more than three descriptors; a container must not keep the kubelet's open.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with open(argv[2]) as f:  # noqa: PTH123
        config = json.load(f)
    if argv[1] == "run":
        return run(config)
    try:
        become({**config, "argv": argv[3:]})
    except ContainerStartFailed as error:
        sys.stderr.write(f"{error}\n")
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
