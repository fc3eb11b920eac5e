"""The caches of the descheduler, and the events that maintain its `ClusterState`.

Pods and nodes are reduced to what plugins read: 100,000 pods must fit in memory. A plugin that needs another kind
requests its informer in its constructor: `handle.objects.informer(PodMigrationJob)`.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from control.boundedpods import bounded
from control.component.informers import CachedKind, InformerSet
from control.descheduler.state.cluster import ClusterState
from control.descheduler.state.loads import ReportedLoad, load_of
from control.slim import slimmed
from koordlet.api.core import Container, Deployment, Node, Pod, ReplicaSet, StatefulSet
from koordlet.api.core.pod import ContainerStatus, PodStatus, PodTemplateSpec, ResourceRequirements
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.meta import ObjectMeta
from koordlet.api.resources import without_deprecated
from koordlet.kube import Client

Workload = TypeVar("Workload", Deployment, ReplicaSet, StatefulSet)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def descheduler_objects(client: Client) -> InformerSet:
    """The informers of a descheduler."""
    return InformerSet(
        client,
        {
            Pod: CachedKind(trim_pod),
            Node: CachedKind(trim_node),
            NodeMetric: CachedKind(load_of),
            **dict.fromkeys((Deployment, ReplicaSet, StatefulSet), CachedKind(trim_workload)),
        },
    )


def follow(objects: InformerSet, state: ClusterState) -> None:
    """Maintain `state` by events. The informer of NodeMetric stores `ReportedLoad`."""
    objects.informer(Node).add_handler(
        state.set_node, lambda old, node: state.set_node(node), lambda node: state.remove_node(node.metadata.name)
    )
    objects.informer(Pod).add_handler(state.set_pod, lambda old, pod: state.set_pod(pod), state.remove_pod)

    def loaded(load: Any) -> None:
        state.set_load(cast(ReportedLoad, load))

    objects.informer(NodeMetric).add_handler(
        loaded, lambda old, load: loaded(load), lambda load: state.remove_load(load.metadata.name)
    )


def trim_node(node: Node) -> Node:
    """A node without addresses and system information, with the current names of resources."""
    node.status.allocatable = without_deprecated(node.status.allocatable)
    node.status.capacity = {}
    node.status.addresses = []
    _trim_meta(node.metadata)
    slimmed(node)
    return node


def trim_pod(pod: Pod) -> Pod:
    """A pod without what no plugin reads: commands, environment, mounts, messages, ports."""
    spec, status = pod.spec, pod.status
    spec.containers = [_trim_container(container) for container in spec.containers]
    spec.init_containers = [_trim_container(container) for container in spec.init_containers]
    spec.overhead = without_deprecated(spec.overhead)
    if spec.resources is not None:
        spec.resources = _renamed(spec.resources)
    spec.service_account_name = spec.hostname = ""
    _trim_meta(pod.metadata)
    for condition in status.conditions:
        condition.last_probe_time = None
        condition.message = ""
    kept = PodStatus(
        phase=status.phase,
        conditions=[condition for condition in status.conditions if condition.type in ("Ready", "PodScheduled")],
        reason=status.reason,
        start_time=status.start_time,
        init_container_statuses=[_trim_status(container) for container in status.init_container_statuses],
        container_statuses=[_trim_status(container) for container in status.container_statuses],
        qos_class=status.qos_class,
    )
    trimmed = bounded(Pod(metadata=pod.metadata, spec=spec, status=kept))
    slimmed(trimmed)
    return trimmed


def trim_workload(workload: Workload) -> Workload:
    """A workload with metadata and number of replicas only: templates would be most of the memory."""
    workload.spec.template = PodTemplateSpec()
    workload.spec.selector = None
    workload.metadata.labels = {}
    workload.metadata.annotations = {}
    slimmed(workload)
    return workload


def _trim_meta(meta: ObjectMeta) -> None:
    meta.generate_name = ""
    meta.annotations = {key: value for key, value in meta.annotations.items() if key != LAST_APPLIED}


def _trim_container(container: Container) -> Container:
    return Container(
        name=container.name,
        image=container.image,
        resources=_renamed(container.resources),
        restart_policy=container.restart_policy,
    )


def _renamed(resources: ResourceRequirements) -> ResourceRequirements:
    """The same with the current names of resources."""
    return msgspec.structs.replace(
        resources, requests=without_deprecated(resources.requests), limits=without_deprecated(resources.limits)
    )


def _trim_status(status: ContainerStatus) -> ContainerStatus:
    state = status.state
    if state.waiting is not None:
        state.waiting.message = ""
    if state.terminated is not None:
        state.terminated.message = ""
    return ContainerStatus(
        name=status.name, state=state, ready=status.ready, restart_count=status.restart_count, started=status.started
    )
