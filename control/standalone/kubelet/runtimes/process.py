"""Containers as plain processes of this host: own cgroup, own session, log, shim; no image, no namespaces.

Every container has a directory `<root>/<id>/` with config.json (the request), started.json and exit.json
(both written by the shim, see `launcher`). This is the complete state: `load` reads it after a
kill -9 of the kubelet. The exit of a container is detected by a pidfd of the shim, without polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree
from control.standalone.kubelet.cgroups.values import SANDBOX_OOM_SCORE_ADJ, sandbox_values
from control.standalone.kubelet.runtimes import launcher
from control.standalone.kubelet.runtimes.runtime import (
    EXEC_OUTPUT_LIMIT_BYTES,
    SANDBOX_NAME,
    ContainerConfig,
    ExecResult,
    RuntimeContainer,
    RuntimeFailure,
    SandboxConfig,
    StreamRequest,
)
from koordlet.app.logging import get_logger
from koordlet.version import VERSION

log = get_logger(__name__)

PAUSE_COMMAND = ("sleep", "infinity")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PARALLEL_STARTS = 4
"""Each start runs a short Python process; more at once would only slow each other down."""
KILL_TIMEOUT_SECONDS = 10.0


class ProcessRuntime:
    """Implements `runtime.ContainerRuntime`. `root` is a directory of its own; `tree` are the machine's cgroups."""

    name = "process"
    version = VERSION
    isolates = False

    def __init__(self, root: Path, tree: CgroupTree, log_max_bytes: int, log_files: int) -> None:
        self._root = root
        self._tree = tree
        self._log_max_bytes = log_max_bytes
        self._log_files = log_files
        self._infos: dict[str, RuntimeContainer] = {}
        self._pidfds: dict[str, int] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self._callback: Callable[[RuntimeContainer], None] = lambda info: None
        self._starting = asyncio.Semaphore(PARALLEL_STARTS)

    def on_exit(self, callback: Callable[[RuntimeContainer], None]) -> None:
        self._callback = callback

    async def close(self) -> None:
        """Stop watching; containers keep running."""
        for container_id in list(self._pidfds):
            self._unwatch(container_id)

    async def load(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in sorted(self._root.iterdir()):
            config = _read_json(folder / "config.json")
            if config is None or not any((folder / f).exists() for f in ("started.json", "exit.json")):
                # The kubelet was killed before the start: no status has this container yet.
                if config is not None:
                    await self._clear_cgroup(config["cgroup"])
                shutil.rmtree(folder)
                continue
            self._infos[folder.name] = info = self._info(config, _read_json(folder / "started.json") or {})
            self._ended[folder.name] = asyncio.Event()
            if (folder / "exit.json").exists() or not self._watch(info):
                await self._finish(folder.name)

    async def pull(self, image: str, has_command: bool) -> None:
        if not has_command:
            raise RuntimeFailure(
                "ErrImagePull",
                f"image {image!r}: container has no command; the process runtime runs commands of this host",
            )

    async def run_sandbox(self, config: SandboxConfig) -> RuntimeContainer:
        pause = ContainerConfig(
            id=config.id,
            pod_uid=config.pod_uid,
            name=SANDBOX_NAME,
            attempt=0,
            image="",
            argv=PAUSE_COMMAND,
            env={},
            cwd="/",
            cgroup=config.cgroup,
            values=sandbox_values(),
            oom_score_adj=SANDBOX_OOM_SCORE_ADJ,
            log_path=Path(os.devnull),
        )
        info = await self._launch(pause, supervise=False)
        if not info.running:
            raise RuntimeFailure("FailedCreatePodSandBox", info.message)
        return info

    async def start(self, config: ContainerConfig) -> RuntimeContainer:
        config.log_path.parent.mkdir(parents=True, exist_ok=True)
        return await self._launch(config, supervise=True)

    async def _launch(self, config: ContainerConfig, supervise: bool) -> RuntimeContainer:
        folder = self._root / config.id
        folder.mkdir(mode=0o700)
        request = {
            "dir": str(folder),
            "supervise": supervise,
            "id": config.id,
            "pod_uid": config.pod_uid,
            "name": config.name,
            "attempt": config.attempt,
            "image": config.image,
            "argv": list(config.argv),
            "env": {"PATH": DEFAULT_PATH, "HOME": "/root", **config.env},
            "cwd": config.cwd,
            "cgroup": config.cgroup,
            "procs": self._tree.procs_files(config.cgroup),
            "oom_score_adj": config.oom_score_adj,
            "user": config.user,
            "group": config.group,
            "log": str(config.log_path),
            "log_max_bytes": self._log_max_bytes,
            "log_files": self._log_files,
        }
        launcher.write_json(str(folder / "config.json"), request)
        try:
            self._tree.create(config.cgroup)
            self._tree.apply(config.cgroup, config.values)
        except OSError as error:
            await self._discard(folder, config.cgroup)
            raise RuntimeFailure("CreateContainerError", f"cgroup {config.cgroup}: {error}") from error
        async with self._starting:
            process = await asyncio.create_subprocess_exec(
                *_launcher("run", folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            out, err = await process.communicate()
        try:
            result = json.loads(out)
        except ValueError as error:
            await self._discard(folder, config.cgroup)
            tail = err.decode(errors="replace").strip()[-400:]
            raise RuntimeFailure(
                "CreateContainerError", f"the launcher failed: {tail or process.returncode}"
            ) from error
        info = self._info(request, result)
        if "error" in result:
            if not supervise:
                await self._discard(folder, config.cgroup)
            else:
                self._tree.remove(config.cgroup)
            info = replace(
                info,
                finished_at=info.started_at,
                exit_code=int(result["code"]),
                reason="ContainerCannotRun",
                message=str(result["error"]),
            )
            if supervise:
                self._infos[config.id] = info
                self._ended[config.id] = asyncio.Event()
                self._ended[config.id].set()
            return info
        self._infos[config.id] = info
        self._ended[config.id] = asyncio.Event()
        if not self._watch(info):
            await self._finish(config.id)
        return self._infos[config.id]

    async def _discard(self, folder: Path, cgroup: str) -> None:
        await self._clear_cgroup(cgroup)
        shutil.rmtree(folder)

    @staticmethod
    def _info(config: Mapping[str, Any], started: Mapping[str, Any]) -> RuntimeContainer:
        return RuntimeContainer(
            id=config["id"],
            pod_uid=config["pod_uid"],
            name=config["name"],
            attempt=config["attempt"],
            cgroup=config["cgroup"],
            log_path=Path(config["log"]),
            pid=int(started.get("pid", 0)),
            started_at=int(started.get("started_at", time.time_ns())),
        )

    def _watch(self, info: RuntimeContainer) -> bool:
        """Register for the end of the shim (or the pause process); False when it has ended or is not known."""
        started = _read_json(self._root / info.id / "started.json") or {}
        key = "shim" if "shim_pid" in started else "pid"
        pid = int(started.get("shim_pid" if key == "shim" else "pid", 0))
        if not pid:
            return False
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        if launcher.starttime(pid) != started[f"{key}_starttime"]:
            os.close(fd)  # the pid belongs to another process now
            return False
        self._pidfds[info.id] = fd
        asyncio.get_running_loop().add_reader(fd, self._shim_ended, info.id)
        return True

    def _unwatch(self, container_id: str) -> None:
        fd = self._pidfds.pop(container_id, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _shim_ended(self, container_id: str) -> None:
        self._unwatch(container_id)
        task = asyncio.get_running_loop().create_task(self._finish(container_id))
        task.add_done_callback(functools.partial(_log_failure, container_id))

    async def _finish(self, container_id: str) -> None:
        """Record the end of a container, from exit.json if the shim wrote it, and kill its remaining processes."""
        info = self._infos[container_id]
        result = _read_json(self._root / container_id / "exit.json")
        oom_kills = self._tree.oom_kills(info.cgroup)
        try:
            await self._clear_cgroup(info.cgroup)
        except CgroupError as error:  # the end is reported nevertheless: the main process has exited
            log.error("Cannot remove a container's cgroup", container=container_id, err=error)
        if result is None:
            info = replace(
                info,
                finished_at=time.time_ns(),
                exit_code=137,
                signal=int(signal.SIGKILL),
                reason="ContainerStatusUnknown",
                message="The container's supervisor ended before the container; its exit status is lost",
            )
        elif "error" in result:
            info = replace(
                info,
                started_at=result["finished_at"],
                finished_at=result["finished_at"],
                exit_code=result["code"],
                reason="ContainerCannotRun",
                message=result["error"],
            )
        else:
            code = int(result["code"])
            killed = code == 137 and (oom_kills > 0 or bool(result.get("oom")))
            reason = "OOMKilled" if killed else "Completed" if code == 0 else "Error"
            info = replace(info, finished_at=result["finished_at"], exit_code=code, reason=reason)
            if killed and not result.get("oom"):  # the cgroup with the counter is removed; a restarted kubelet needs it
                try:
                    launcher.write_json(str(self._root / container_id / "exit.json"), {**result, "oom": True})
                except OSError as error:  # a full disk: only a restarted kubelet will not know it
                    log.warning("Cannot record that a container was OOM-killed", container=container_id, err=error)
        self._infos[container_id] = info
        self._ended[container_id].set()
        self._callback(info)

    async def _clear_cgroup(self, cgroup: str) -> None:
        """Kill and remove; raises `CgroupError` after KILL_TIMEOUT_SECONDS, for a process stuck in the kernel."""
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        while self._tree.exists(cgroup):
            if self._tree.kill(cgroup) and self._tree.remove(cgroup):
                return
            if time.monotonic() > deadline:
                raise CgroupError(errno.EBUSY, f"processes in {cgroup} do not end: {self._tree.pids(cgroup)}")
            await asyncio.sleep(0.01)

    def get(self, container_id: str) -> RuntimeContainer | None:
        return self._infos.get(container_id)

    def containers(self, pod_uid: str | None = None) -> list[RuntimeContainer]:
        return [i for i in self._infos.values() if pod_uid is None or i.pod_uid == pod_uid]

    def signal(self, container_id: str, number: int) -> None:
        """Signal the main process; no effect on an exited container."""
        info = self._infos.get(container_id)
        if info is None or not info.running or container_id not in self._pidfds:
            return
        started = _read_json(self._root / container_id / "started.json") or {}
        if launcher.starttime(info.pid) != started.get("pid_starttime"):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(info.pid, number)

    async def kill(self, container_id: str) -> None:
        info = self._infos.get(container_id)
        if info is None or not info.running:
            return
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        while not self._ended[container_id].is_set():
            self._tree.kill(info.cgroup)
            try:
                async with asyncio.timeout(0.1):
                    await self._ended[container_id].wait()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise RuntimeFailure("KillContainerError", f"container {container_id} does not end") from None

    async def remove(self, container_id: str) -> None:
        info = self._infos.get(container_id)
        if info is None:
            return
        await self.kill(container_id)
        await self._clear_cgroup(info.cgroup)
        self._unwatch(container_id)
        shutil.rmtree(self._root / container_id, ignore_errors=True)
        del self._infos[container_id], self._ended[container_id]

    async def stream_url(self, request: StreamRequest) -> str:
        raise RuntimeFailure("NotImplemented", "exec, attach and port-forward need a container runtime (CRI)")

    async def exec(self, container_id: str, argv: Sequence[str], seconds: float) -> ExecResult:
        info = self._infos.get(container_id)
        if info is None or not info.running:
            raise RuntimeFailure("ContainerNotRunning", f"container {container_id} is not running")
        process = await asyncio.create_subprocess_exec(
            *_launcher("exec", self._root / container_id, *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        output = bytearray()

        async def collect() -> int:
            assert process.stdout is not None
            while chunk := await process.stdout.read(4096):
                output.extend(chunk[: EXEC_OUTPUT_LIMIT_BYTES - len(output)])
            return await process.wait()

        try:
            async with asyncio.timeout(seconds):
                code = await collect()
        except TimeoutError:
            return ExecResult(124, bytes(output), timed_out=True)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return ExecResult(128 - code if code < 0 else code, bytes(output))


def _launcher(verb: str, folder: Path, *argv: str) -> list[str]:
    return [sys.executable, "-I", "-S", launcher.__file__, verb, str(folder / "config.json"), *argv]


def _read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None when the file is missing or not valid JSON (it is written atomically)."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("Ignoring a damaged state file", file=str(path), err=error)
        return None
    return value if isinstance(value, dict) else None


def _log_failure(container_id: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("Cannot record the end of a container", container=container_id, err=error)
