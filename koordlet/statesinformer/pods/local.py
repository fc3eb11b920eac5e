"""Workloads derived from the cgroup tree alone: `koordlet --standalone` (no API server, no kubelet).

Subjects are pods and containers in kubepods, containers of Docker, containerd, cri-o and podman, services, slices and
user sessions. Names are derived from paths. QoS is derived for kubepods only, from the Kubernetes QoS class, like
Koordinator's default (spec 01 §4.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Subject, SubjectKind, Workloads, subjects_of
from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.cgroup.owners import CgroupOwner, OwnerKind, classify

QOS_OF = {KubeQOS.GUARANTEED: "LSR", KubeQOS.BURSTABLE: "LS", KubeQOS.BESTEFFORT: "BE"}
PRIORITY_OF = {"LSR": "koord-prod", "LS": "koord-prod", "BE": "koord-batch"}
MAX_GROUPS = 512
"""Maximum number of services, sessions and containers outside kubepods; a host has dozens."""


def discover(dirs: Iterable[str], version: int) -> Workloads:
    """Workloads in these cgroup directories (of the cpu hierarchy, relative, parents first)."""
    pods: dict[str, tuple[str, CgroupOwner]] = {}
    containers: dict[str, list[tuple[str, CgroupOwner]]] = {}
    groups: list[Subject] = []
    for path in dirs:
        owner = classify(path)
        match owner.kind:
            case OwnerKind.POD:
                pods[owner.pod_uid] = (path, owner)
            case OwnerKind.CONTAINER if owner.pod_uid:
                containers.setdefault(owner.pod_uid, []).append((path, owner))
            case OwnerKind.CONTAINER:
                runtime = owner.runtime or "unknown"
                groups.append(Subject(SubjectKind.CONTAINER, f"{runtime}://{owner.container_id}", path, owner.name))
            case OwnerKind.SERVICE | OwnerKind.SLICE | OwnerKind.SCOPE | OwnerKind.USER_SESSION:
                groups.append(Subject(SubjectKind.GROUP, path, path, owner.name))
            case OwnerKind.OTHER if path and "/" not in path:
                groups.append(Subject(SubjectKind.GROUP, path, path, owner.name))
            case _:
                continue
    metas = {uid: _pod(uid, path, owner, containers.get(uid, [])) for uid, (path, owner) in pods.items()}
    subjects = [subject for meta in metas.values() for subject in subjects_of(meta)]
    return Workloads(version, MappingProxyType(metas), (*subjects, *groups[:MAX_GROUPS]))


def _pod(uid: str, path: str, owner: CgroupOwner, containers: list[tuple[str, CgroupOwner]]) -> PodMeta:
    kube_qos = owner.qos or KubeQOS.GUARANTEED
    qos = QOS_OF[kube_qos]
    return PodMeta(
        uid=uid,
        name=uid,
        namespace="",
        qos=qos,
        priority_class=PRIORITY_OF[qos],
        kube_qos=kube_qos.value,
        cgroup_dir=path,
        containers=tuple(
            ContainerMeta(f"{c.runtime or 'unknown'}://{c.container_id}", c.name, where, running=True)
            for where, c in containers
        ),
    )
