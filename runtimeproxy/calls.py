"""CRI's intercepted calls: what a hook is told of each, and what its answer changes (spec 08 §11)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from koordlet.api.cri import SERVICES
from runtimeproxy.store import PodInfo


class Call(StrEnum):
    """The intercepted methods of CRI's RuntimeService; the value is the method's name."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"


_PATHS = {f"/{service}/{call}": call for service in SERVICES for call in Call}


def intercepted(path: str) -> Call | None:
    """The call of an HTTP/2 `:path`, of either version of the service; None: pass it through."""
    return _PATHS.get(path)


@dataclass(frozen=True, slots=True)
class SkipRule:
    """Pods with this label are exempt from hooks (flags of spec 08 §7)."""

    key: str = "runtimeproxy.koordinator.sh/skip-hookserver"
    value: str = "true"

    def exempts(self, pod: PodInfo) -> bool:
        return bool(self.key) and pod.labels.get(self.key) == self.value
