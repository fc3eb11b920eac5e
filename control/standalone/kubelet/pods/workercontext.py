"""The components that all pod workers share, and the interface of the kubelet that they call."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.pods.backoff import CrashLoopBackoff
from control.standalone.kubelet.pods.environ import DownwardNodeInfo, Lookup
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.pods.status import PhaseDecision
from control.standalone.kubelet.runtimes.runtime import ContainerRuntime
from koordlet.app.clock import Clock

if TYPE_CHECKING:
    from control.standalone.kubelet.pods.spec import ParsedPod
    from control.standalone.kubelet.pods.volumes import TokenWish
    from control.standalone.kubelet.pods.worker import PodWorker


class ApiUnavailable(Exception):
    """The API server could not be read."""


class KubeletInterface(Protocol):
    """The methods of the kubelet that its pod workers call."""

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None: ...

    def publish(self, worker: PodWorker) -> None:
        """The pod's `status` may have changed."""

    async def lookup(self, namespace: str, references: set[tuple[str, str]]) -> Lookup:
        """Fetch ConfigMaps and Secrets; raises `ApiUnavailable`."""
        ...

    async def token(self, pod: ParsedPod, wish: TokenWish) -> str:
        """A token of the pod's account, bound to the pod; raises `ApiUnavailable`."""
        ...

    async def finalize(self, worker: PodWorker) -> None:
        """Post the last status and delete the API object (uid as precondition); returns when it is gone."""

    async def admit(self, worker: PodWorker) -> PhaseDecision | None:
        """None: the pod may run, and `worker.admitted` is set, before another pod is decided about."""

    def forget(self, worker: PodWorker) -> None: ...


@dataclass(frozen=True, slots=True)
class PodWorkerContext:
    """The components shared by all pod workers of a kubelet."""

    runtime: ContainerRuntime
    cgroups: PodCgroups
    store: PodStore
    clock: Clock
    backoff: CrashLoopBackoff
    node: DownwardNodeInfo
    memory_capacity: int
    host: KubeletInterface
    new_id: Callable[[], str] = lambda: secrets.token_hex(32)
