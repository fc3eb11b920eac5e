"""What the kubelet asks of whatever runs containers: `process_runtime` or, over CRI, `cri_runtime`.

Ids are 64 hex digits; a runtime that gives its own takes what is before the last slash of `cgroup` as the parent.
Times are nanoseconds since the epoch. A runtime owns its containers' state: it must find them again after the kubelet
was killed (`load`), and it tells of every end through the callback given to `on_exit`, from the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from control.standalone.kubelet.cgroups.values import CgroupValues

SANDBOX_NAME = "POD"
"""Container name under which a pod's sandbox is kept; no real container may have an upper-case name."""


class RuntimeFailure(Exception):
    """The runtime could not do it; `reason` is the CamelCase word for the API."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """A pod as its sandbox must know it: hooks of the runtime decide by labels and annotations."""

    id: str
    pod_uid: str
    cgroup: str
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path = Path("/dev")


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
    """Without, `argv` are arguments for the image's own program."""


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container that was started (or tried to). `exit_code` is None while it runs."""

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


class Runtime(Protocol):
    name: str
    version: str

    def on_exit(self, callback: Callable[[RuntimeContainer], None]) -> None: ...

    async def load(self) -> None:
        """Find the containers of an earlier life; to be called once, before anything else."""

    async def pull(self, image: str, has_command: bool) -> None:
        """Raise `RuntimeFailure` when a container of this image cannot be made here."""

    async def run_sandbox(self, config: SandboxConfig) -> RuntimeContainer: ...

    async def start(self, config: ContainerConfig) -> RuntimeContainer:
        """Create and start; a command that cannot be executed gives an exited container, not an error."""

    def get(self, container_id: str) -> RuntimeContainer | None: ...

    def containers(self, pod_uid: str | None = None) -> list[RuntimeContainer]: ...

    def signal(self, container_id: str, number: int) -> None: ...

    async def kill(self, container_id: str) -> None:
        """SIGKILL everything in the container and wait until it is over."""

    async def remove(self, container_id: str) -> None:
        """End it if need be, forget it and take its cgroup away."""

    async def exec(self, container_id: str, argv: Sequence[str], seconds: float) -> ExecResult: ...

    async def close(self) -> None:
        """Stop watching; containers keep running."""
