"""Containers of a real runtime over CRI: containerd itself, or a proxy before it.

The runtime keeps all state; `load` reads it after a kill -9 of the kubelet. The end of a container is reported by
GetContainerEvents where it is supported (containerd 1.7), else found by listing once per second. A stopped sandbox is
kept until its last container is removed, because the runtime would delete their states with it. A call without a
response may have been executed: before the same name is used again, the object that has it is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from control.standalone.containerd.hostimage import HOST_IMAGE, mounts
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.runtimes import crirequests as requests
from control.standalone.kubelet.runtimes.criclient import CriClient, CriError
from control.standalone.kubelet.runtimes.crirequests import CONTAINER_NAME, POD_UID
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
from koordlet.api.cri import api_pb2 as cri
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

POLL_SECONDS = 1.0
RELIST_SECONDS = 10.0
"""Time between lists when the runtime sends events, which are lost while the connection is down."""
CONNECT_SECONDS = 30.0
ROTATE_SECONDS = 10.0
STOP_GRACE_SECONDS = 24 * 3600
"""Timeout of StopContainer; `kill` ends it earlier, when the pod's own grace period is over."""


@dataclass
class _Sandbox:
    id: str
    pod_uid: str
    config: Any
    """The PodSandboxConfig that CreateContainer has to repeat."""
    stopped: bool = False
    containers: set[str] = field(default_factory=set)


class CriRuntime:
    """Implements `runtime.ContainerRuntime` with `client`, which `close` closes. Logs are rotated as in kubelet."""

    name = "containerd"
    version = ""
    isolates = True

    def __init__(
        self, client: CriClient, tree: CgroupTree, log_max_bytes: int, log_files: int, poll: float = POLL_SECONDS
    ) -> None:
        self._client = client
        self._tree = tree
        self._poll_seconds = poll
        self._log_max_bytes = log_max_bytes
        self._log_files = log_files
        file = "memory.memsw.limit_in_bytes" if tree.version == 1 else "cgroup.controllers"
        root = tree.roots["memory" if tree.version == 1 else ""]
        self._swap = requests.SwapAccounting(tree.version, (root / file).exists())
        self._mounts = tuple(mounts())
        self._infos: dict[str, RuntimeContainer] = {}
        """Running and exited containers, and running sandboxes."""
        self._sandboxes: dict[str, _Sandbox] = {}
        self._unknown_outcomes: set[tuple[str, str]] = set()
        """(pod uid, container name) of calls whose outcome is unknown."""
        self._callback: Callable[[RuntimeContainer], None] = lambda info: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable = False
        """The last list request failed."""

    def on_exit(self, callback: Callable[[RuntimeContainer], None]) -> None:
        self._callback = callback

    async def load(self) -> None:
        await self._connect()
        try:
            for item in await self._client.list_pod_sandbox():
                await self._load_sandbox(item)
            for item in await self._client.list_containers():
                await self._load_container(item)
            for known in list(self._sandboxes.values()):
                await self._remove_if_unused(known)
        except CriError as error:
            raise RuntimeFailure("LoadError", f"cannot list the existing containers: {error}") from error
        self._spawn(self._watch(), "cri-watch")
        self._spawn(self._rotate(), "cri-logs")

    async def close(self) -> None:
        """Stop watching; containers keep running."""
        await end_tasks(*self._tasks)
        await self._client.close()

    async def _connect(self) -> None:
        """Wait until the runtime responds; the kubelet may be started before it."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                version = await self._client.version(5.0)
            except CriError as error:
                if time.monotonic() > deadline:
                    raise RuntimeFailure("RuntimeUnreachable", f"{self._client.path}: {error}") from error
                await asyncio.sleep(0.2)
            else:
                self.name = version.runtime_name
                self.version = version.runtime_version
                return

    async def _load_sandbox(self, item: Any) -> None:
        uid = item.labels.get(POD_UID, "")
        if not uid:
            return  # not a kubelet's
        status = await self._client.pod_sandbox_status(item.id, verbose=True)
        cgroup = requests.cgroup_of(status.info)
        config = requests.known_sandbox(item, cgroup, Path("/dev"))
        ready = item.state == cri.SANDBOX_READY
        self._sandboxes[item.id] = _Sandbox(item.id, uid, config, stopped=not ready)
        if ready:
            self._infos[item.id] = _sandbox_info(item.id, uid, item.metadata.attempt, cgroup, item.created_at)

    async def _load_container(self, item: Any) -> None:
        sandbox = self._sandboxes.get(item.pod_sandbox_id)
        if sandbox is None:
            return
        if item.state == cri.CONTAINER_CREATED:
            # The kubelet was killed between creating and starting: no status has this container yet.
            await self._client.remove_container(item.id)
            return
        response = await self._client.container_status(item.id, verbose=True)
        status = response.status
        log_path = Path(status.log_path)
        if len(log_path.parents) > 2:
            sandbox.config.log_directory = str(log_path.parents[1])
        sandbox.containers.add(item.id)
        info = RuntimeContainer(
            id=item.id,
            pod_uid=sandbox.pod_uid,
            name=item.metadata.name,
            attempt=item.metadata.attempt,
            cgroup=requests.cgroup_of(response.info),
            log_path=log_path,
            pid=0,
            started_at=status.started_at or status.created_at,
        )
        self._infos[item.id] = _ended(info, status) if status.state == cri.CONTAINER_EXITED else info

    async def pull(self, image: str, has_command: bool) -> None:
        if image == HOST_IMAGE and not has_command:
            raise RuntimeFailure(
                "ErrImagePull", f"image {image!r}: container has no command; the image has only this host's programs"
            )
        try:
            if await self._client.image(image) is None:
                await self._client.pull_image(image)
        except CriError as error:
            raise RuntimeFailure("ErrImagePull", str(error)) from error

    async def run_sandbox(self, config: SandboxConfig) -> RuntimeContainer:
        await self._clear_unknown_outcome(config.pod_uid, SANDBOX_NAME)
        attempts = [s.config.metadata.attempt for s in self._sandboxes.values() if s.pod_uid == config.pod_uid]
        attempt = max(attempts, default=-1) + 1
        config.log_dir.mkdir(parents=True, exist_ok=True)
        sandbox_config = requests.sandbox(config, attempt)
        self._unknown_outcomes.add((config.pod_uid, SANDBOX_NAME))
        try:
            sandbox_id = await self._client.run_pod_sandbox(sandbox_config)
        except CriError as error:
            raise RuntimeFailure("FailedCreatePodSandBox", str(error)) from error
        self._unknown_outcomes.discard((config.pod_uid, SANDBOX_NAME))
        self._sandboxes[sandbox_id] = _Sandbox(sandbox_id, config.pod_uid, sandbox_config)
        cgroup = config.cgroup.replace(config.id, sandbox_id)
        info = self._infos[sandbox_id] = _sandbox_info(sandbox_id, config.pod_uid, attempt, cgroup, time.time_ns())
        return info

    async def start(self, config: ContainerConfig) -> RuntimeContainer:
        sandbox = next((s for s in self._sandboxes.values() if s.pod_uid == config.pod_uid and not s.stopped), None)
        if sandbox is None:
            raise RuntimeFailure("CreateContainerError", "the pod's sandbox does not run")
        await self._clear_unknown_outcome(config.pod_uid, config.name)
        config.log_path.parent.mkdir(parents=True, exist_ok=True)
        sandbox.config.log_directory = str(config.log_path.parents[1])
        container_config = requests.container(config, sandbox.config, self._swap, self._mounts)
        self._unknown_outcomes.add((config.pod_uid, config.name))
        try:
            container_id = await self._client.create_container(sandbox.id, container_config, sandbox.config)
        except CriError as error:
            raise RuntimeFailure("CreateContainerError", str(error)) from error
        try:
            await self._client.start_container(container_id)
            problem = None
        except CriError as error:
            problem = error
        try:
            status = (await self._client.container_status(container_id)).status
        except CriError as error:
            raise RuntimeFailure("RunContainerError", str(problem or error)) from error
        if status.state == cri.CONTAINER_CREATED:
            raise RuntimeFailure("RunContainerError", str(problem or "the container was created, but not started"))
        self._unknown_outcomes.discard((config.pod_uid, config.name))
        info = RuntimeContainer(
            id=container_id,
            pod_uid=config.pod_uid,
            name=config.name,
            attempt=config.attempt,
            cgroup=config.cgroup.replace(config.id, container_id),
            log_path=config.log_path,
            pid=0,
            started_at=status.started_at or status.created_at,
        )
        sandbox.containers.add(container_id)
        if status.state == cri.CONTAINER_EXITED:
            # A short run is reported like any other end; a failed start gets the reason ContainerCannotRun.
            ended = _ended(info, status)
            failed = problem is not None and not problem.lost
            self._infos[container_id] = replace(ended, reason="ContainerCannotRun") if failed else ended
        else:
            self._infos[container_id] = info
        return self._infos[container_id]

    async def _clear_unknown_outcome(self, pod_uid: str, name: str) -> None:
        """Remove the object that an earlier call without a response may have created: it would occupy the name."""
        if (pod_uid, name) not in self._unknown_outcomes:
            return
        try:
            if name == SANDBOX_NAME:
                for item in await self._client.list_pod_sandbox():
                    if item.labels.get(POD_UID) == pod_uid and item.id not in self._sandboxes:
                        await self._client.stop_pod_sandbox(item.id)
                        await self._client.remove_pod_sandbox(item.id)
            else:
                for item in await self._client.list_containers():
                    matches = item.labels.get(POD_UID) == pod_uid and item.labels.get(CONTAINER_NAME) == name
                    if matches and item.id not in self._infos:
                        await self._client.remove_container(item.id)
        except CriError as error:
            message = f"cannot remove the result of an earlier attempt: {error}"
            raise RuntimeFailure("CreateContainerError", message) from error
        self._unknown_outcomes.discard((pod_uid, name))

    def get(self, container_id: str) -> RuntimeContainer | None:
        return self._infos.get(container_id)

    def containers(self, pod_uid: str | None = None) -> list[RuntimeContainer]:
        return [i for i in self._infos.values() if pod_uid is None or i.pod_uid == pod_uid]

    async def exec(self, container_id: str, argv: Sequence[str], seconds: float) -> ExecResult:
        info = self._infos.get(container_id)
        if info is None or not info.running:
            raise RuntimeFailure("ContainerNotRunning", f"container {container_id} is not running")
        try:
            response = await self._client.exec_sync(container_id, argv, seconds)
        except CriError as error:
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                return ExecResult(124, b"", timed_out=True)
            if error.lost:
                raise RuntimeFailure("RuntimeUnreachable", str(error)) from error
            return ExecResult(127, error.details.encode()[:EXEC_OUTPUT_LIMIT_BYTES])
        return ExecResult(response.exit_code, (response.stdout + response.stderr)[:EXEC_OUTPUT_LIMIT_BYTES])

    async def stream_url(self, request: StreamRequest) -> str:
        client = self._client
        flags = {"stdin": request.stdin, "stdout": request.stdout, "stderr": request.stderr, "tty": request.tty}
        try:
            if request.pod_uid:
                pod = (s for s in self._sandboxes.values() if s.pod_uid == request.pod_uid and not s.stopped)
                sandbox = next(pod, None)
                if sandbox is None:
                    raise RuntimeFailure("ContainerNotRunning", "the pod's sandbox does not run")
                return await client.port_forward(sandbox.id, request.ports)
            if request.command is not None:
                return await client.exec(request.container_id, request.command, **flags)
            return await client.attach(request.container_id, **flags)
        except CriError as error:
            raise RuntimeFailure("StreamError", str(error)) from error

    def signal(self, container_id: str, number: int) -> None:
        """Send SIGTERM, the only signal that CRI supports (StopContainer); no effect on an exited container."""
        if number != signal.SIGTERM:
            raise ValueError(f"CRI sends no signal {number}")
        info = self._infos.get(container_id)
        if info is not None and info.running:
            self._spawn(self._terminate(container_id), f"stop-{container_id[:12]}")

    async def _terminate(self, container_id: str) -> None:
        try:
            await self._client.stop_container(container_id, STOP_GRACE_SECONDS)
        except CriError as error:
            log.warning("StopContainer failed", container=container_id, err=error)
        await self._refresh(container_id)

    async def kill(self, container_id: str) -> None:
        info = self._infos.get(container_id)
        if info is None or not info.running:
            return
        try:
            await self._client.stop_container(container_id)
        except CriError as error:
            if not error.absent:
                raise RuntimeFailure("KillContainerError", str(error)) from error
        await self._refresh(container_id)

    async def remove(self, container_id: str) -> None:
        sandbox = self._sandboxes.get(container_id)
        try:
            if sandbox is not None:
                await self._stop_sandbox(sandbox)
                return
            if container_id not in self._infos:
                return
            await self.kill(container_id)
            with _ignoring_absent():
                await self._client.remove_container(container_id)
        except CriError as error:
            raise RuntimeFailure("KillContainerError", str(error)) from error
        self._infos.pop(container_id, None)
        for pod_sandbox in list(self._sandboxes.values()):
            if container_id in pod_sandbox.containers:
                pod_sandbox.containers.discard(container_id)
                await self._remove_if_unused(pod_sandbox)

    async def _stop_sandbox(self, sandbox: _Sandbox) -> None:
        with _ignoring_absent():
            await self._client.stop_pod_sandbox(sandbox.id)
        sandbox.stopped = True
        self._infos.pop(sandbox.id, None)
        for container_id in list(sandbox.containers):
            await self._refresh(container_id)
        await self._remove_if_unused(sandbox)

    async def _remove_if_unused(self, sandbox: _Sandbox) -> None:
        if not sandbox.stopped or sandbox.containers:
            return
        try:
            with _ignoring_absent():
                await self._client.remove_pod_sandbox(sandbox.id)
        except CriError as error:
            # It is removed after the next start of the kubelet.
            log.warning("Cannot remove a stopped sandbox", sandbox=sandbox.id, err=error)
        self._sandboxes.pop(sandbox.id, None)

    async def _watch(self) -> None:
        """Find exited containers: by events where the runtime sends them, else by listing once per period."""
        listener = asyncio.create_task(self._listen(), name="cri-events")
        try:
            while not listener.done():
                await asyncio.wait({listener}, timeout=RELIST_SECONDS)
                await self._relist()
            if (error := listener.exception()) is not None:
                log.error("Cannot follow container events", err=error)
            while True:
                await asyncio.sleep(self._poll_seconds)
                await self._relist()
        finally:
            await end_tasks(listener)

    async def _listen(self) -> None:
        """Follow the runtime's events; returns when it does not support them."""
        while True:
            try:
                async for event in self._client.events():
                    if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
                        await self._refresh(event.container_id)
            except CriError as error:
                if error.code is grpc.StatusCode.UNIMPLEMENTED:
                    return
                log.once("cri-events", "Container events are interrupted", err=error)
            await asyncio.sleep(1.0)
            await self._relist()

    async def _relist(self) -> None:
        """Refresh the containers that are recorded as running but not listed as running."""
        known = {i.id for i in self._infos.values() if i.running}
        if not known:
            return
        try:
            sandboxes = {s.id for s in await self._client.list_pod_sandbox() if s.state == cri.SANDBOX_READY}
            containers = {c.id for c in await self._client.list_containers() if c.state == cri.CONTAINER_RUNNING}
        except CriError as error:
            if not self._unreachable:
                log.warning("The runtime does not respond", err=error)
            self._unreachable = True
            return
        if self._unreachable:
            log.info("The runtime responds again")
        self._unreachable = False
        for missing in known - sandboxes - containers:
            await self._refresh(missing)

    async def _refresh(self, container_id: str) -> None:
        """Read the status of a container that may have exited, and report its end once."""
        info = self._infos.get(container_id)
        if info is None or not info.running:
            return
        try:
            if container_id in self._sandboxes:
                ended = await self._sandbox_end(info)
            else:
                ended = _ended(info, (await self._client.container_status(container_id)).status)
        except CriError as error:
            if not error.absent:
                log.warning("The runtime does not respond", container=container_id, err=error)
                return
            ended = replace(
                info,
                finished_at=time.time_ns(),
                exit_code=137,
                signal=int(signal.SIGKILL),
                reason="ContainerStatusUnknown",
                message="The container could not be located when its status was queried",
            )
        current = self._infos.get(container_id)
        if ended.running or current is None or not current.running:
            return
        self._infos[container_id] = ended
        self._callback(ended)

    async def _sandbox_end(self, info: RuntimeContainer) -> RuntimeContainer:
        status = (await self._client.pod_sandbox_status(info.id)).status
        if status.state == cri.SANDBOX_READY:
            return info
        return replace(info, finished_at=time.time_ns(), exit_code=137, reason="Error")

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_SECONDS)
            for info in [i for i in self._infos.values() if i.running and i.name != SANDBOX_NAME]:
                if 0 < self._log_max_bytes <= _size(info.log_path):
                    await self._rotate_one(info)

    async def _rotate_one(self, info: RuntimeContainer) -> None:
        """Rename 0.log -> 0.log.1 -> … up to the number of kept files, then have the runtime open a new file."""
        path = info.log_path
        files = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, self._log_files))]
        try:
            for source, target in reversed(list(itertools.pairwise(files))):
                if source.exists():
                    source.replace(target)
            await self._client.call("ReopenContainerLog", cri.ContainerRequest(container_id=info.id))
        except (CriError, OSError) as error:
            log.warning("Cannot rotate a container's log", container=info.id, err=error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(_done, self._tasks))


def _done(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("A task of the CRI runtime failed", task=task.get_name(), err=error)


@contextlib.contextmanager
def _ignoring_absent() -> Any:
    """Ignore NOT_FOUND: the object to be removed does not exist."""
    try:
        yield
    except CriError as error:
        if not error.absent:
            raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sandbox_info(sandbox_id: str, pod_uid: str, attempt: int, cgroup: str, created_at: int) -> RuntimeContainer:
    return RuntimeContainer(sandbox_id, pod_uid, SANDBOX_NAME, attempt, cgroup, Path("/dev/null"), 0, created_at)


def _ended(info: RuntimeContainer, status: Any) -> RuntimeContainer:
    """`info` with the end in a ContainerStatus; unchanged when the container has not exited."""
    if status.state != cri.CONTAINER_EXITED:
        return info
    code = status.exit_code
    return replace(
        info,
        started_at=status.started_at or info.started_at,
        finished_at=status.finished_at or time.time_ns(),
        exit_code=code,
        signal=code - 128 if 128 < code <= 128 + 64 else 0,
        reason=status.reason or ("Completed" if code == 0 else "Error"),
        message=status.message,
    )
