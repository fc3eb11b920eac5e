"""The context of a hook call, from the runtime's description of a pod or container. Pure.

A request has labels and annotations but no pod spec. So the containers are those of the extended-resource annotation,
with their batch resources as requests and limits, and the Kubernetes QoS class is taken from the cgroup path.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from koordlet.api.annotations.pod import EXTENDED_RESOURCE_SPEC
from koordlet.api.core import Container, Pod
from koordlet.api.core.pod import PodSpec, PodStatus, ResourceRequirements
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectMeta
from koordlet.api.priority import priority_class
from koordlet.api.qos import qos_class
from koordlet.qosmanager.engine.view import PodView
from koordlet.runtimehooks.stages import HookError
from koordlet.statesinformer.pods.cpuallocation import allocation_of
from koordlet.statesinformer.pods.deviceallocation import devices_of_pod
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.cgroup.naming import CgroupDriver, NamingError, parse_pod_name, pod_dir, qos_of_dir

DOCKER_ANNOTATION = "io.kubernetes.docker.type"
CACHED_PODS = 64
"""Pods of the latest calls: a pod has several calls within seconds, and does not change between them."""


def pod_of(
    name: str,
    namespace: str,
    uid: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
    *,
    handler: str = "",
) -> PodView:
    """A pod that is about to start; the same object for the same arguments. Raises HookError for a cgroup parent that
    cannot be the directory of a pod."""
    label_items = tuple(dict(labels).items())  # converted, because maps of protobuf messages are slow
    annotation_items = tuple(dict(annotations).items())
    return _pod(name, namespace, uid, label_items, annotation_items, cgroup_parent, handler)


@lru_cache(maxsize=CACHED_PODS)
def _pod(
    name: str,
    namespace: str,
    uid: str,
    labels: tuple[tuple[str, str], ...],
    annotations: tuple[tuple[str, str], ...],
    cgroup_parent: str,
    handler: str,
) -> PodView:
    directory = cgroup_dir(cgroup_parent)
    kube_qos = qos_of_dir(directory).value
    pod = Pod(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=uid, labels=dict(labels), annotations=dict(annotations)
        ),
        spec=PodSpec(containers=_containers(dict(annotations)), runtime_class_name=handler or None),
        status=PodStatus(phase="Pending", qos_class=kube_qos),
    )
    meta = PodMeta(
        uid,
        name,
        namespace,
        qos_class(pod),
        priority_class(pod),
        kube_qos,
        directory,
        (),
        pod,
        cpu_allocation=allocation_of(pod),
        device_allocation=devices_of_pod(pod),
    )
    return PodView.of(meta, None, None)


def _containers(annotations: Mapping[str, str]) -> list[Container]:
    try:
        containers = EXTENDED_RESOURCE_SPEC.get(annotations).containers
    except WireError:  # the hook that needs the annotation reports the error
        return []
    return [
        Container(name=name, resources=ResourceRequirements(limits=spec.limits, requests=spec.requests))
        for name, spec in containers.items()
    ]


def cgroup_dir(cgroup_parent: str) -> str:
    """The directory relative to a hierarchy's root. Docker's cgroup parent is the name of a slice without its
    parents."""
    directory = cgroup_parent.strip("/")
    if ".." in directory.split("/"):
        raise HookError(f"cgroup parent {cgroup_parent!r} leads upwards")
    if "/" in directory or not directory.endswith(".slice"):
        return directory
    try:
        uid = parse_pod_name(CgroupDriver.SYSTEMD, directory)
        return pod_dir(CgroupDriver.SYSTEMD, qos_of_dir(directory), uid)
    except NamingError:
        return directory


def container_id(runtime: str, digest: str, annotations: Mapping[str, str]) -> str:
    """`<runtime>://<id>`; empty without an id. `runtime` is that of the node; Docker's pods have an annotation."""
    if not digest:
        return ""
    return f"{'docker' if DOCKER_ANNOTATION in annotations else runtime}://{digest}"
