"""/stats/summary (only CPU and memory) and the kubelet's own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.standalone.kubelet.agent import Kubelet
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.runtimes.runtime import SANDBOX_NAME
from control.standalone.objectmeta import timestamp


def _usage(tree: CgroupTree, cgroup: str, now: float) -> dict[str, Any]:
    """CPU and memory of one cgroup; values that the kernel does not have are left out."""
    out: dict[str, Any] = {}
    cpu = tree.cpu_usage_ns(cgroup)
    if cpu is not None:
        out["cpu"] = {"time": timestamp(now), "usageCoreNanoSeconds": cpu}
    usage = tree.memory_usage(cgroup)
    if usage is not None:
        inactive = tree.memory_inactive_file(cgroup) or 0
        out["memory"] = {
            "time": timestamp(now),
            "usageBytes": usage,
            "workingSetBytes": max(0, usage - inactive),
        }
    return out


def summary(kubelet: Kubelet, now: float) -> dict[str, Any]:
    tree = kubelet.cgroups.tree
    pods = []
    for worker in kubelet.workers.values():
        if worker.spec is None or worker.finished:
            continue
        containers = [
            {"name": info.name, "startTime": timestamp(info.started_at / 1e9), **_usage(tree, info.cgroup, now)}
            for info in kubelet.runtime.containers(worker.uid)
            if info.running and info.name != SANDBOX_NAME
        ]
        pods.append(
            {
                "podRef": {"name": worker.pod_name, "namespace": worker.namespace, "uid": worker.uid},
                "startTime": timestamp(worker.start_time),
                "containers": containers,
                **_usage(tree, kubelet.cgroups.pod_dir(worker.spec), now),
            }
        )
    root = kubelet.cgroups.names.root()
    return {"node": {"nodeName": kubelet.config.name, **_usage(tree, root, now)}, "pods": pods}


class KubeletCollector(Collector):
    """Reads the kubelet's state at each scrape."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def collect(self) -> Iterator[Metric]:
        running = [i for i in self._kubelet.runtime.containers() if i.running]
        pods = {i.pod_uid for i in running if i.name == SANDBOX_NAME}
        yield GaugeMetricFamily("kubelet_running_pods", "Pods with a running sandbox", value=len(pods))
        containers = GaugeMetricFamily("kubelet_running_containers", "Containers by state", labels=["container_state"])
        containers.add_metric(["running"], sum(i.name != SANDBOX_NAME for i in running))
        containers.add_metric(["exited"], len(self._kubelet.runtime.containers()) - len(running))
        yield containers
        yield GaugeMetricFamily("kubelet_pods", "Pods known", value=len(self._kubelet.workers))
        yield GaugeMetricFamily(
            "kubelet_pod_status_send_failures",
            "Failed attempts to send a pod status",
            value=self._kubelet.statuses.failures,
        )
