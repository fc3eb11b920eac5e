"""A row of the metrics catalogue, and the labels that families share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

INTERNAL: Literal["internal"] = "internal"
"""koordlet's own state: /internal-metrics."""
EXTERNAL: Literal["external"] = "external"
"""For users: /external-metrics."""

Side = Literal["internal", "external"]
MetricType = Literal["gauge", "counter", "histogram"]
UNITS = {
    **{unit: unit for unit in ("seconds", "milliseconds", "bytes", "cores", "ratio")},
    "share": "ratio",
    "us": "microseconds",
}
"""Last word of a name, without `_total` -> unit."""

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
    side: Side = INTERNAL
    """The registry."""
    type: MetricType = "gauge"
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


def internal(
    name: str,
    help: str,
    labels: tuple[str, ...] = (),
    *,
    type: MetricType | None = None,
    unit: str | None = None,
    node_label: bool = True,
    side: Side = INTERNAL,
) -> Family:
    """A family of koordlet's own state. By default type and unit are those of the name, by Prometheus' conventions: a
    counter ends in `_total`, the word before is the unit."""
    stem = name.removesuffix("_total")
    type = type or ("counter" if stem != name else "gauge")
    unit = UNITS.get(stem.rpartition("_")[2], "") if unit is None else unit
    return Family(name, help, labels, side, type, unit, node_label)


external = partial(internal, side=EXTERNAL)
"""A family for users, with the arguments of `internal`."""
