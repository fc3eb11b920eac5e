"""The informers of the process: one per kind, shared by controllers and webhooks, with the indexes of spec 04 §1.8.

Controllers and webhooks request their informers while they are constructed; all informers start together. Every
replica has the same set, so a new leader starts with warm caches. Cached objects are shared and must not be modified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from control.slim import slimmed
from koordlet.api import names
from koordlet.api.core import Container, Job, Node, Pod, ReplicaSet
from koordlet.api.core.workloads import JobSpec, WorkloadSpec
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError, decode
from koordlet.api.registry import resource_for
from koordlet.kube import Client, Informer, InformerSettings
from koordlet.kube.decode import KubeObject

T = TypeVar("T", bound=KubeObject)

POD_BY_NODE = "spec.nodeName"
POD_BY_QUOTA = "label.quotaName"
QUOTA_BY_NAMESPACE = "annotation.namespaces"
QUOTA_BY_NAME = "metadata.name"
RECOMMENDATION_BY_NAMESPACE = "metadata.namespace"


def quota_namespaces(quota: ElasticQuota) -> list[str]:
    """The JSON list in the namespaces annotation of a quota; empty when it is missing or malformed."""
    text = quota.metadata.annotations.get(names.ANNOTATION_QUOTA_NAMESPACES)
    if not text:
        return []
    try:
        namespaces: list[str] = decode(text, list[str])
    except WireError:
        return []  # the quota webhook refuses a malformed list; one that bypassed it selects no namespace
    return namespaces


def _quota_of(pod: Pod) -> Iterable[str]:
    name = pod.metadata.labels.get(names.LABEL_QUOTA_NAME)
    return [name] if name else []


INDEXES: dict[type, dict[str, Callable[[Any], Iterable[str]]]] = {
    Pod: {POD_BY_NODE: lambda pod: [pod.spec.node_name], POD_BY_QUOTA: _quota_of},
    ElasticQuota: {QUOTA_BY_NAMESPACE: quota_namespaces, QUOTA_BY_NAME: lambda quota: [quota.metadata.name]},
    Recommendation: {RECOMMENDATION_BY_NAMESPACE: lambda recommendation: [recommendation.metadata.namespace]},
}


def _trim_container(container: Container) -> Container:
    return msgspec.structs.replace(
        container, command=[], args=[], env=[], ports=[], volume_mounts=[], volume_devices=[], working_dir=""
    )


def trim_pod(pod: Pod) -> Pod:
    """A pod without the fields that no controller or webhook reads from the cache: commands, environment, volumes."""
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_trim_container(c) for c in pod.spec.containers],
        init_containers=[_trim_container(c) for c in pod.spec.init_containers],
        volumes=[],
    )
    return msgspec.structs.replace(pod, spec=spec)


def trim_metric(metric: NodeMetric) -> NodeMetric:
    """A NodeMetric without aggregation windows and NUMA usage: three quarters of its size, read only by schedulers."""
    info = metric.status.node_metric
    if info is not None:
        info = msgspec.structs.replace(info, aggregated_node_usages=[], aggregated_system_usages=[], numa_usages=[])
    return msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, node_metric=info))


TRIMS: dict[type, Callable[[Any], Any]] = {
    Pod: lambda pod: slimmed(trim_pod(pod)),
    NodeMetric: lambda metric: slimmed(trim_metric(metric)),
    Node: slimmed,
    # only the owner references of these two are read
    ReplicaSet: lambda replica_set: slimmed(msgspec.structs.replace(replica_set, spec=WorkloadSpec())),
    Job: lambda job: slimmed(msgspec.structs.replace(job, spec=JobSpec())),
}


class Caches:
    """Informers by kind. `informer(Node)` creates the informer on first use, which must be before `start`."""

    def __init__(self, client: Client, *, namespace: str = "", resync_seconds: float | None = None) -> None:
        self.name = "caches"
        self._client = client
        self._namespace = namespace or None
        self._resync = resync_seconds
        self._informers: dict[type, Informer[Any]] = {}
        self._started = False

    def informer(self, kind: type[T]) -> Informer[T]:
        """The informer of a kind. Raises RuntimeError when it is first requested after `start`."""
        informer = self._informers.get(kind)
        if informer is None:
            if self._started:
                raise RuntimeError(f"the cache of {kind.__name__} was not requested before the start")
            namespaced = resource_for(kind).namespaced
            informer = self._informers[kind] = Informer(
                self._client,
                kind,
                self._namespace if namespaced else None,
                indexes=INDEXES.get(kind),
                trim=TRIMS.get(kind),
                settings=InformerSettings(resync_period_s=self._resync),
            )
        return informer

    @property
    def informers(self) -> Mapping[type, Informer[Any]]:
        return self._informers

    async def start(self) -> None:
        self._started = True
        for informer in self._informers.values():
            await informer.start()

    async def synced(self) -> None:
        """Return when every cache holds its first complete list of objects."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(informer.stop() for informer in self._informers.values()))
