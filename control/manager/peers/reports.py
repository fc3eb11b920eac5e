"""The performance of each container in a NodeMetric, as reports about replicas. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from control.manager.peers.samples import GroupKey, Replica, ReplicaSample
from control.manager.recommender.targets import WorkloadOwner
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric, PodMetricInfo, containers_of
from koordlet.api.crs.performance import figures_of
from koordlet.api.pages.interference import EXTENSION_KEY as INTERFERENCE

NEIGHBOUR = "neighbour"


def replicas_of(
    metric: NodeMetric, pod_of: Callable[[str], Pod | None], workload_of: Callable[[Pod], WorkloadOwner | None]
) -> Iterator[tuple[GroupKey, Replica, ReplicaSample]]:
    """`pod_of`: pod by `namespace/name`. Pods that are not on this node (any more) or belong to no workload are left
    out."""
    updated, node = metric.status.update_time, metric.metadata.name
    if updated is None:
        return
    for reported in metric.status.pods_metric:
        figures = figures_of(reported)
        key = f"{reported.namespace}/{reported.name}"
        pod = pod_of(key) if figures else None
        if pod is None or pod.spec.node_name != node:
            continue
        workload = workload_of(pod)
        if workload is None:
            continue
        delayed = neighbour_delays(reported)
        cores = _cores(reported)
        for container, values in figures.items():
            group = (reported.namespace, workload.kind, workload.name, container)
            replica = Replica(key, pod.metadata.uid, node, container in delayed)
            yield group, replica, ReplicaSample(updated.unix, cores.get(container, cores.get("", 0.0)), values)


def neighbour_delays(pod: PodMetricInfo) -> set[str]:
    """Containers that koordlet names a neighbour for."""
    briefs = (pod.extensions or {}).get(INTERFERENCE)
    return {
        str(brief.get("container"))
        for brief in (briefs if isinstance(briefs, list) else ())
        if isinstance(brief, dict) and brief.get("cause") == NEIGHBOUR
    }


def _cores(pod: PodMetricInfo) -> dict[str, float]:
    """Cores by container; by "" for a pod whose only container is not listed."""
    containers = containers_of(pod)
    if containers:
        return {name: cores for name, (cores, _) in containers.items()}
    whole = pod.pod_usage.resources.get("cpu")
    return {} if whole is None else {"": float(whole)}
