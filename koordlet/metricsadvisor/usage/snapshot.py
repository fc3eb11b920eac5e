"""The usage of the node at the last tick: all derived figures, for batches and views. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.metricsadvisor.usage.besteffort import BestEffortUse, batch_request, best_effort_use
from koordlet.metricsadvisor.usage.node import NodeUse, ResourceUse, node_use, system_numa_use, system_use
from koordlet.metricsadvisor.usage.readings import Pairing, Readings
from koordlet.metricsadvisor.usage.workloads import WorkloadUse, by_qos, kind_mask, total, workload_use
from koordlet.statesinformer.pods.model import SubjectKind, Workloads


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """Figures between two readings. A member is None where a reading was missing."""

    at: float
    workloads: Workloads
    use: WorkloadUse
    qos: Mapping[str, ResourceUse]
    node: NodeUse | None = None
    system: ResourceUse | None = None
    system_numa: Mapping[int, ResourceUse] = field(default_factory=dict)
    best_effort: BestEffortUse | None = None


def derive(
    old: Readings, new: Readings, node_of_cpu: Mapping[int, int], batch_milli: int | None = None
) -> UsageSnapshot:
    """The figures between two ticks. `batch_milli`: `batch_request` of the pods, where it is known already."""
    use = workload_use(new, Pairing(old, new))
    pods = total(use, kind_mask(new, SubjectKind.POD))
    host_apps = total(use, kind_mask(new, SubjectKind.HOST_APP))
    node = node_use(old, new, node_of_cpu)
    system = None if node is None else system_use(node, pods, host_apps)
    return UsageSnapshot(
        at=new.at,
        workloads=new.workloads,
        use=use,
        qos=by_qos(use, new),
        node=node,
        system=system,
        system_numa={} if node is None or system is None else system_numa_use(node, system, new.pods_numa),
        best_effort=_best_effort(new, use, batch_milli),
    )


def _best_effort(new: Readings, use: WorkloadUse, batch_milli: int | None) -> BestEffortUse | None:
    for row in new.workloads.rows[SubjectKind.QOS]:
        if new.workloads.subjects[row].key == "BestEffort":
            cores = float(use.cores[row])
            requested = batch_request(new.workloads.pods.values()) if batch_milli is None else batch_milli
            return best_effort_use(None if cores != cores else cores, requested, new.best_effort)
    return None
