"""A row of the metrics catalogue, and the labels that families share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INTERNAL: Literal["internal"] = "internal"
"""koordlet's own state: /internal-metrics."""
EXTERNAL: Literal["external"] = "external"
"""For users: /external-metrics."""

POD = ("pod_uid", "pod_name", "pod_namespace")
CONTAINER = (*POD, "container_id", "container_name")
GPU = ("gpu_minor", "gpu_device_uuid")
CULPRIT = ("culprit_kind", "culprit_namespace", "culprit_pod", "culprit")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; `name` has no `koordlet_` prefix."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Without `node`."""
    side: Literal["internal", "external"] = INTERNAL
    """The registry."""
    type: Literal["gauge", "counter", "histogram"] = "gauge"
    unit: str = ""
    node_label: bool = True
    """Whether `node` is the first label."""

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return f"koordlet_{self.name}"

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Including `node`."""
        return ("node", *self.labels) if self.node_label else self.labels

    @property
    def shared(self) -> int:
        """Number of first labels that identify a pod or container, which are the same in other families."""
        return next((len(owner) for owner in (CONTAINER, POD) if self.labels[: len(owner)] == owner), 0)
