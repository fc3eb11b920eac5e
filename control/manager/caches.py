"""The informers of the process: one per kind, shared by controllers and webhooks, with the indexes of spec 04 §1.8.

Controllers and webhooks request their informers while they are constructed; all informers start together. Every
replica has the same set, so a new leader starts with warm caches. Cached objects are shared and must not be modified.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from control.boundedpods import bounded, few
from control.component.informers import CachedKind, InformerSet
from control.slim import slimmed
from koordlet.api import names
from koordlet.api.core import Container, Job, Pod, ReplicaSet
from koordlet.api.core.pod import PodSpec, PodTemplateSpec, ResourceRequirements
from koordlet.api.core.podresources import pod_requests
from koordlet.api.core.workloads import JobSpec, JobStatus, WorkloadSpec
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.queueing import Queue
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError, decode
from koordlet.api.meta import ObjectMeta
from koordlet.kube import Client, InformerSettings

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


def trim_job(job: Job) -> Job:
    """A job without template and status; of one that names a queue the template requests what its pods do."""
    if names.ANNOTATION_QUEUE_NAME not in job.metadata.annotations:
        return msgspec.structs.replace(job, spec=JobSpec(), status=JobStatus())
    template = job.spec.template
    requests = few(pod_requests(Pod(metadata=template.metadata, spec=template.spec)))
    kept = PodTemplateSpec(
        metadata=ObjectMeta(labels=few(template.metadata.labels)),
        spec=PodSpec(
            containers=[Container(name="all", resources=ResourceRequirements(requests=requests))],
            priority_class_name=template.spec.priority_class_name,
        ),
    )
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, selector=None, template=kept))


KINDS: dict[type[Any], CachedKind] = {
    Pod: CachedKind(
        lambda pod: slimmed(bounded(trim_pod(pod))),
        indexes={POD_BY_NODE: lambda pod: [pod.spec.node_name], POD_BY_QUOTA: _quota_of},
    ),
    NodeMetric: CachedKind(lambda metric: slimmed(trim_metric(metric))),
    # of these two only owner references are read, and more of jobs that wait in a queue
    ReplicaSet: CachedKind(lambda replica_set: slimmed(msgspec.structs.replace(replica_set, spec=WorkloadSpec()))),
    Job: CachedKind(lambda job: slimmed(trim_job(job))),
    Queue: CachedKind(max_bytes=4 << 20),  # koord-manager lists 2,000 units in its status
    ElasticQuota: CachedKind(
        indexes={QUOTA_BY_NAMESPACE: quota_namespaces, QUOTA_BY_NAME: lambda quota: [quota.metadata.name]}
    ),
    Recommendation: CachedKind(
        indexes={RECOMMENDATION_BY_NAMESPACE: lambda recommendation: [recommendation.metadata.namespace]}
    ),
}
"""The kinds of which not everything is kept, or that have indexes."""


class Caches(InformerSet):
    """The informers of the manager. `namespace`: see `InformerSet`."""

    def __init__(self, client: Client, *, namespace: str = "", resync_seconds: float | None = None) -> None:
        settings = InformerSettings(resync_period_s=resync_seconds)
        super().__init__(client, KINDS, namespace=namespace or None, settings=settings)
