#!/usr/bin/env python3
"""Runs a command in a guest with Debian's 6.1 kernel and one unified cgroup v2 tree.

    scripts/guest.py [--out DIR] [--timeout SECONDS] [--cpus NUMBER] [--memory SIZE] [--tap NAME] -- COMMAND ...

The guest has this machine's root file system read-only (changes under /tmp, /usr, /etc … stay in its memory), two
emulated CPUs by default, PSI, BTF and kernel headers, and runs COMMAND as root in the repository's directory. Files
that the command writes to $GUEST_OUT are in DIR afterwards (default build/guest/out), with the kernel's messages in
kernel.log. The exit status is the command's; 125 when the guest itself failed, 124 after the timeout, 123 when it gave
no sign of life for SILENCE_S: an emulated kernel occasionally hangs. The guest proves behaviour, not speed.

The first run fetches the kernel and its headers by package name and unpacks them under build/guest; later runs start
immediately. Needs the packages of scripts/apt/test.txt and the virtual environment with virtme-ng.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUEST = ROOT / "build" / "guest"
TREE = GUEST / "root"
VENV = ROOT / "build" / "venv"
META_PACKAGE = "linux-image-amd64"
HEADERS_META = "linux-headers-amd64"
TIMEOUT = 1200.0
MEMORY = "2G"
NETWORK = "--qemu-opts=-netdev tap,id=tap,ifname={},script=no,downscript=no -device virtio-net-pci,netdev=tap"
CPU = "max,avx2=off"
"""Debian's qemu 7.2 emulates AVX2 incorrectly: numpy's sort returns unsorted arrays."""
FAILED, TIMED_OUT, STUCK = 125, 124, 123
BEAT_S, BOOT_S, SILENCE_S = 5, 300.0, 180.0
"""Seconds between two signs of life; until the first one; without one, until the guest counts as hung."""
PYTHON_CACHE = GUEST / "pycache"
"""Compiled Python modules for the guest; the host fills it with PYTHONPYCACHEPREFIX."""
HOST, CACHED_TAG = "/run/host", "koord-cached"
OUT = "/run/guest-out"
"""Where the guest has `--out`."""
CACHED_DISK = (
    f"-fsdev local,id={CACHED_TAG},path=/,security_model=none,readonly=on,multidevs=remap"
    f" -device virtio-9p-pci,fsdev={CACHED_TAG},mount_tag={CACHED_TAG}"
)
CACHED = [str(VENV), *(str(ROOT / part) for part in ("koordlet", "control", "tests")), sysconfig.get_path("stdlib")]
"""The root file system's pages are read again at each use; Python's start-up files are cached in memory."""
LEASH = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 "-$$") & exec 3<&-; "$@" 2>&1 | cat'
"""Runs "$@", and kills the process group when no process holds the other end of its input: this script was killed. qemu
opens its output by name and would truncate a file that others write to, so it gets a pipe."""


class GuestError(Exception):
    """The guest cannot be created or started; the message names what is missing."""


@dataclass(frozen=True)
class Machine:
    """What distinguishes the guests of the architectures."""

    kernel: Path
    options: tuple[str, ...]
    """Of vng."""
    prepare: tuple[str, ...]
    """Commands of the guest's shell before the command."""


def depends(package: str, prefix: str) -> list[str]:
    """Names of dependencies of `package` that begin with `prefix`."""
    output = capture("apt-cache", "depends", package)
    names = [line.split()[-1] for line in output.splitlines() if line.strip().startswith("Depends:")]
    return [name for name in names if name.startswith(prefix)]


def capture(*command: str, env: Mapping[str, str] | None = None) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=GUEST, env=env).stdout
    except FileNotFoundError as error:
        raise GuestError(f"{command[0]} is not installed (scripts/apt/test.txt)") from error
    except subprocess.CalledProcessError as error:
        raise GuestError(f"{shlex.join(command)}: {error.stderr.strip()}") from error


def amd64() -> Machine:
    """The guest with this machine's root file system; its kernel is fetched and unpacked if it is missing. The headers'
    links point to /usr/src, so they are mounted there. Raises `GuestError`.
    """
    stamp = GUEST / "ready"
    if not stamp.exists():
        print("guest: fetching the kernel and its headers", file=sys.stderr, flush=True)
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.mkdir(parents=True)
        kernel = depends(META_PACKAGE, "linux-image-")
        headers = depends(HEADERS_META, "linux-headers-")
        if not kernel or not headers:
            raise GuestError(f"{META_PACKAGE} names no kernel; run apt-get update")
        packages = [*kernel, *headers, *depends(headers[0], "linux-")]
        capture("apt-get", "download", *packages)
        for package in packages:
            for archive in GUEST.glob(f"{package}_*.deb"):
                capture("dpkg", "-x", str(archive), str(TREE))
                archive.unlink()
        stamp.touch()
    images = sorted((TREE / "boot").glob("vmlinuz-*"))
    if not images:
        raise GuestError(f"{TREE}/boot holds no kernel; remove {GUEST} and run again")
    return on_this_root(images[-1], "", f"mount --bind {shlex.quote(str(TREE / 'usr/src'))} /usr/src")


def on_this_root(kernel: Path, options: str, *prepare: str) -> Machine:
    """A guest with this machine's root file system; `options` are more options of qemu."""
    PYTHON_CACHE.mkdir(exist_ok=True)
    return Machine(
        kernel,
        (f"--qemu-opts=-cpu {CPU} {CACHED_DISK} {options}",),
        (
            *prepare,
            f"mkdir -p {HOST} /run/upper /run/work",
            f"mount -t 9p -o ro,version=9p2000.L,trans=virtio,msize=524288,cache=loose {CACHED_TAG} {HOST}",
            *(f"mount --bind {shlex.quote(HOST + path)} {shlex.quote(path)}" for path in CACHED),
            f"mount -t overlay -o lowerdir={HOST}{PYTHON_CACHE},upperdir=/run/upper,workdir=/run/work"
            f" python-cache {shlex.quote(str(PYTHON_CACHE))}",
            f"export PYTHONPYCACHEPREFIX={shlex.quote(str(PYTHON_CACHE))} PATH={shlex.quote(str(VENV / 'bin'))}:$PATH",
        ),
    )


def script(prepare: Iterable[str], command: list[str]) -> str:
    """The script of the guest's shell."""
    return "\n".join(
        [
            *prepare,
            f"cd {shlex.quote(str(ROOT))}",
            f"export GUEST_OUT={OUT} HOME=/tmp PYTHONUNBUFFERED=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis",
            'dmesg --follow >"$GUEST_OUT/kernel.log" 2>&1 &',
            f'while cat /proc/uptime >"$GUEST_OUT/alive"; do sleep {BEAT_S}; done &',
            shlex.join(command),
            'echo $? >"$GUEST_OUT/status"',
        ]
    )


def run(
    machine: Machine, command: list[str], out: Path, timeout: float = TIMEOUT, cpus: int = 2, memory: str = MEMORY
) -> int:
    """Boot, run the command, and return its exit status. Raises `GuestError`."""
    vng = VENV / "bin" / "vng"
    if not vng.exists():
        raise GuestError(f"{vng} is missing; run scripts/setup.sh test")
    out.mkdir(parents=True, exist_ok=True)
    status, alive = out / "status", out / "alive"
    for left in (status, alive):
        left.unlink(missing_ok=True)
    commands = out / "run.sh"  # vng passes the command on the kernel's command line, which holds 2 KiB
    commands.write_text(script(machine.prepare, command))
    boot = [
        str(vng), "--disable-kvm", "--run", str(machine.kernel), "--cpus", str(cpus), "--memory", memory,
        "--append", "psi=1", f"--rwdir={OUT}={out}", *machine.options, "--", f"sh {OUT}/{commands.name}",
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"}
    leashed = ["sh", "-c", LEASH, "sh", *boot]
    process = subprocess.Popen(leashed, cwd=ROOT, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    try:
        failure = watch(process, alive, timeout)
    finally:
        end_group(process)
    if failure:
        return failure
    try:
        return int(status.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise GuestError(f"the guest ended without a status (vng: {process.returncode})") from error


def watch(process: subprocess.Popen[bytes], alive: Path, timeout: float) -> int | None:
    """Wait for `process`; returns `TIMED_OUT` or `STUCK` when it must be killed, None when it ended."""
    began = beaten = time.monotonic()
    patience, last = BOOT_S, ""
    while True:
        try:
            process.wait(1)
            return None
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        beat = alive.read_text().strip() if alive.exists() else ""
        if beat and beat != last:  # a file that is being written may be empty
            beaten, patience, last = now, SILENCE_S, beat
        if now - began > timeout:
            print(f"guest: not finished after {timeout:.0f} s", file=sys.stderr)
            return TIMED_OUT
        if now - beaten > patience:
            print(f"guest: no sign of life for {patience:.0f} s; up and idle seconds: {last or 0}", file=sys.stderr)
            return STUCK


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill qemu with its parents: the whole process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def stop(_number: int, _frame: object) -> None:
    """On SIGTERM, unwind so that `run` ends the guest."""
    raise KeyboardInterrupt


def main(set_up: Callable[[], Machine]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=GUEST / "out")
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", default=MEMORY)
    parser.add_argument("--tap", help="a tap device of this machine; the guest's end is its only network device")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        machine = set_up()
        if options.tap:
            machine = replace(machine, options=(*machine.options, NETWORK.format(options.tap)))
        return run(machine, options.command, options.out.resolve(), options.timeout, options.cpus, options.memory)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(amd64))
