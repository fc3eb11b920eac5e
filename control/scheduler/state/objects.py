"""Caches of cluster objects: one informer per kind, created at first use, all started together.

Objects are transformed (spec 05 §1.6) and reduced to what the scheduler reads before they enter a store: 100,000 pods
must fit in memory beside the table.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from control.boundedpods import bounded
from control.component.informers import CachedKind, InformerSet
from control.scheduler.state.nodeimages import ImageNode, ImagePool
from control.scheduler.state.resizing import ResizablePod, with_effective_requests
from control.scheduler.state.transform import transform_device, transform_node, transform_pod, transform_quota
from control.slim import slimmed
from koordlet.api.core import ConfigMap, Container, Node, Pod, ReplicaSet, StatefulSet
from koordlet.api.core.claims import DeviceClass, ResourceClaim, ResourceSlice
from koordlet.api.core.pod import PodStatus, PodTemplateSpec
from koordlet.api.crs.device import Device
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client

TEMPLATES_CONFIG: Final = "gpu-shared-resource-templates"
LIVING_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"


def kept_kinds(gates: FeatureGates, templates: str = TEMPLATES_CONFIG) -> dict[type[Any], CachedKind]:
    """The kinds of which not everything is kept. `templates`: the name of the one ConfigMap that is read."""
    images = ImagePool()
    return {
        Pod: CachedKind(
            lambda pod: trim_pod(transform_pod(with_effective_requests(pod), gates)), ResizablePod, LIVING_PODS
        ),
        Node: CachedKind(lambda node: slimmed(images.trim(transform_node(node))), ImageNode),
        ConfigMap: CachedKind(field_selector=f"metadata.name={templates}"),
        Device: CachedKind(lambda device: slimmed(transform_device(device))),
        **{kind: CachedKind(optional=True) for kind in (ResourceClaim, ResourceSlice, DeviceClass)},
        ElasticQuota: CachedKind(lambda quota: slimmed(transform_quota(quota))),
        **dict.fromkeys((ReplicaSet, StatefulSet), CachedKind(trim_workload)),
    }


class ClusterObjects(InformerSet):
    """The `Objects` of a running scheduler. A service for `Runner`."""

    def __init__(self, client: Client, gates: FeatureGates, templates: str) -> None:
        super().__init__(client, kept_kinds(gates, templates))


def trim_pod(pod: Pod) -> Pod:
    """Drop the parts of a pod that no plugin reads: commands, environment, mounts, container statuses."""
    spec, status = pod.spec, pod.status
    spec.containers = [_trim_container(container) for container in spec.containers]
    spec.init_containers = [_trim_container(container) for container in spec.init_containers]
    spec.service_account_name = spec.hostname = ""
    pod.metadata.generate_name = ""
    conditions = status.conditions
    for condition in conditions:
        condition.last_probe_time = None
        if condition.type != "PodScheduled" or spec.node_name:
            condition.message = ""
    kept = PodStatus(
        phase=status.phase,
        conditions=conditions,
        nominated_node_name=status.nominated_node_name,
        start_time=status.start_time,
        qos_class=status.qos_class,
        resource_claim_statuses=status.resource_claim_statuses,
    )
    trimmed = bounded(Pod(metadata=pod.metadata, spec=spec, status=kept))
    slimmed(trimmed)
    return trimmed


def trim_workload(workload: ReplicaSet | StatefulSet) -> ReplicaSet | StatefulSet:
    """Of workloads only the selectors are read. A template may be as long as the longest pod, without pods."""
    workload.spec.template = PodTemplateSpec()
    trimmed: ReplicaSet | StatefulSet = slimmed(workload)
    return trimmed


def _trim_container(container: Container) -> Container:
    return msgspec.structs.replace(
        container, command=[], args=[], env=[], volume_mounts=[], volume_devices=[], working_dir=""
    )
