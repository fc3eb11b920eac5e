"""The interface of the container runtimes: `process.ProcessRuntime` and, over CRI, `cri.CriRuntime`.

Ids are 64 hex digits; a runtime with its own ids uses the part of `cgroup` before the last slash as the parent.
Times are nanoseconds since the epoch. A runtime owns its containers' state: `load` must find them after the kubelet
was killed. It reports every end to the callback of `on_exit`, in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from control.standalone.kubelet.cgroups.values import CgroupValues

EXEC_OUTPUT_LIMIT_BYTES = 16 * 1024
"""More output of a command in a container is cut off."""
SANDBOX_NAME = "POD"
"""Container name of a pod's sandbox; real containers cannot have upper-case names."""


class RuntimeFailure(Exception):
    """An operation of the runtime failed; `reason` is the CamelCase reason for the API."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PathMount:
    """A path of the node in a container. `propagation`: HostToContainer, Bidirectional, or empty for none."""

    source: str
    path: str
    read_only: bool
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class ContainerSecurity:
    """What a container may do. Capabilities have no prefix; `seccomp`: RuntimeDefault, Unconfined, or empty."""

    privileged: bool = False
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    read_only_root: bool = False
    no_new_privileges: bool = False
    seccomp: str = ""
    host_pid: bool = False
    host_ipc: bool = False


UNRESTRICTED = ContainerSecurity()
"""The runtime's defaults."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """A pod's data for its sandbox. Hooks of the runtime use the labels and annotations."""

    id: str
    pod_uid: str
    cgroup: str
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path = Path("/dev")
    security: ContainerSecurity = UNRESTRICTED
    """Its namespaces, and whether a container is privileged."""


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    id: str
    pod_uid: str
    name: str
    attempt: int
    image: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    cgroup: str
    values: CgroupValues
    oom_score_adj: int
    log_path: Path
    user: int | None = None
    group: int | None = None
    has_program: bool = True
    """False: `argv` are arguments of the image's own program."""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target: str = ""
    """Id of the container whose PID namespace it joins. Plain processes see all processes anyway."""
    mounts: Sequence[PathMount] = ()
    security: ContainerSecurity = UNRESTRICTED


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container that was started, or failed to start. `exit_code` is None while it runs."""

    id: str
    pod_uid: str
    name: str
    attempt: int
    cgroup: str
    log_path: Path
    pid: int
    started_at: int
    finished_at: int | None = None
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return self.exit_code is None


@dataclass(frozen=True, slots=True)
class ExecResult:
    code: int
    output: bytes
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A stream to a container (exec with a command, else attach), or to ports of a pod (`pod_uid`)."""

    container_id: str = ""
    command: Sequence[str] | None = None
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False
    pod_uid: str = ""
    ports: Sequence[int] = ()


class ContainerRuntime(Protocol):
    name: str
    version: str
    isolates: bool
    """Containers have a file system and namespaces of their own: volumes and securityContext apply."""

    def on_exit(self, callback: Callable[[RuntimeContainer], None]) -> None: ...

    async def load(self) -> None:
        """Find the containers that an earlier kubelet process started; called once, before any other method."""

    async def pull(self, image: str, has_command: bool) -> None:
        """Raise `RuntimeFailure` when a container of this image cannot be created here."""

    async def run_sandbox(self, config: SandboxConfig) -> RuntimeContainer: ...

    async def start(self, config: ContainerConfig) -> RuntimeContainer:
        """Create and start; a command that cannot be executed is an exited container, not an error."""

    def get(self, container_id: str) -> RuntimeContainer | None: ...

    def containers(self, pod_uid: str | None = None) -> list[RuntimeContainer]: ...

    def signal(self, container_id: str, number: int) -> None: ...

    async def kill(self, container_id: str) -> None:
        """SIGKILL all processes of the container and wait for its end."""

    async def remove(self, container_id: str) -> None:
        """Kill the container if it runs, and remove it with its cgroup."""

    async def exec(self, container_id: str, argv: Sequence[str], seconds: float) -> ExecResult: ...

    async def stream_url(self, request: StreamRequest) -> str:
        """Where the runtime serves this stream, once. Raise `RuntimeFailure`; reason NotImplemented: it serves none."""

    async def close(self) -> None:
        """Stop watching; containers keep running."""
