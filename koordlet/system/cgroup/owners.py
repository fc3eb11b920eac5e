"""The owner of a cgroup on any Linux host, from its path alone: the discovery behind `koordlet --standalone`. Pure.

The rules are the naming conventions of the kubelet, of the container engines and of systemd; no daemon is queried. They
run from the most to the least specific. A path that no rule matches is `OTHER` with the path as its name, so every
cgroup of a host has exactly one owner.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from koordlet.system.cgroup.naming import KubeQOS, qos_of_dir


class OwnerKind(enum.Enum):
    ROOT = "root"
    KUBE_QOS = "kube-qos"
    """The kubepods root or one of its QoS directories."""
    POD = "pod"
    CONTAINER = "container"
    """A container of any engine; `pod_uid` is set for Kubernetes containers."""
    SERVICE = "service"
    SLICE = "slice"
    SCOPE = "scope"
    USER_SESSION = "user-session"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    kind: OwnerKind
    name: str
    """The usual short name: unit name, container id cut to 12 characters, pod UID, or the path."""
    runtime: str = ""
    """docker, containerd, cri-o, podman, lxc, nspawn; empty where the path does not show it."""
    container_id: str = ""
    pod_uid: str = ""
    """With `-` where the cgroup driver wrote `_`."""
    user: int | None = None
    """uid of a user session."""
    qos: KubeQOS | None = None
    """Only below kubepods."""


_ID = r"(?P<id>[0-9a-f]{64})"
_SCOPES = (
    (re.compile(rf"^docker-{_ID}\.scope$"), "docker"),
    (re.compile(rf"^cri-containerd-{_ID}\.scope$"), "containerd"),
    (re.compile(rf"^(?:nerdctl|containerd)-{_ID}\.scope$"), "containerd"),
    (re.compile(rf"^crio-{_ID}(?:\.scope)?$"), "cri-o"),
    (re.compile(rf"^libpod-{_ID}\.scope$"), "podman"),
    (re.compile(rf"^libpod-{_ID}$"), "podman"),
    (re.compile(r"^.+:cri-containerd:(?P<id>[A-Za-z0-9_.-]+)$"), "containerd"),
    (re.compile(r"^.+:crio:(?P<id>[A-Za-z0-9_.-]+)$"), "cri-o"),
    (re.compile(r"^.+:docker:(?P<id>[A-Za-z0-9_.-]+)$"), "docker"),
    (re.compile(r"^lxc\.payload\.(?P<id>.+)$"), "lxc"),
    (re.compile(r"^machine-(?P<id>.+)\.scope$"), "nspawn"),
)
_PARENTS = (
    (re.compile(rf"(?:^|/)docker/{_ID}$"), "docker"),
    (re.compile(r"(?:^|/)docker/buildkit/(?P<id>[a-z0-9]+)$"), "docker"),
    (re.compile(r"(?:^|/)lxc/(?P<id>[^/]+)$"), "lxc"),
    (re.compile(r"^(?:default|k8s\.io|moby|buildkit)/(?P<id>[A-Za-z0-9_.-]+)$"), "containerd"),
    (re.compile(rf"(?:^|/)libpod_parent/(?:libpod-)?{_ID}$"), "podman"),
    (re.compile(rf"(?:^|/)machine\.slice/libpod-{_ID}(?:\.scope)?/container$"), "podman"),
)
_POD = re.compile(r"^(?:kubepods(?:-burstable|-besteffort)?-)?pod(?P<uid>[0-9A-Za-z_-]+?)(?:\.slice)?$")
_KUBE_ROOT = re.compile(r"^kubepods(?:\.slice)?$")
_KUBE_QOS = re.compile(r"^(?:kubepods-)?(?:burstable|besteffort)(?:\.slice)?$")
_USER = re.compile(r"(?:^|/)user-(?P<uid>\d+)\.slice(?:/|$)")


def classify(cgroup_dir: str) -> CgroupOwner:
    """The owner of a directory given relative to its hierarchy's root; never fails."""
    parts = [part for part in cgroup_dir.split("/") if part]
    if not parts:
        return CgroupOwner(OwnerKind.ROOT, "/")
    path, name = "/".join(parts), parts[-1]
    kube_at = next((index for index, part in enumerate(parts) if _KUBE_ROOT.match(part)), None)
    if kube_at is not None:
        return _below_kubepods(path, parts[kube_at + 1 :])
    return _container(path, name) or _unit(path, name)


def _below_kubepods(path: str, parts: list[str]) -> CgroupOwner:
    qos = qos_of_dir(path)
    if parts and _KUBE_QOS.match(parts[0]):
        parts = parts[1:]
    if not parts:
        return CgroupOwner(OwnerKind.KUBE_QOS, path, qos=qos)
    match = _POD.match(parts[0])
    if match is None:
        return CgroupOwner(OwnerKind.OTHER, path, qos=qos)
    uid = match["uid"].replace("_", "-")
    if len(parts) == 1:
        return CgroupOwner(OwnerKind.POD, uid, pod_uid=uid, qos=qos)
    container = _container(path, parts[1])
    digest, runtime = (container.container_id, container.runtime) if container else (parts[1], "")
    if len(parts) > 2:  # a cgroup that the container created: it belongs to the container
        return CgroupOwner(OwnerKind.OTHER, path, runtime, digest, uid, qos=qos)
    return CgroupOwner(OwnerKind.CONTAINER, digest[:12], runtime, digest, uid, qos=qos)


def _container(path: str, name: str) -> CgroupOwner | None:
    for pattern, runtime in _SCOPES:
        if match := pattern.match(name):
            return CgroupOwner(OwnerKind.CONTAINER, match["id"][:12], runtime, match["id"])
    for pattern, runtime in _PARENTS:
        if match := pattern.search(path):
            return CgroupOwner(OwnerKind.CONTAINER, match["id"][:12], runtime, match["id"])
    return None


def _unit(path: str, name: str) -> CgroupOwner:
    user = _USER.search(path)
    uid = int(user["uid"]) if user else None
    if name.startswith("session-") and name.endswith(".scope"):
        return CgroupOwner(OwnerKind.USER_SESSION, name.removesuffix(".scope"), user=uid)
    if uid is not None and (name == f"user-{uid}.slice" or name == f"user@{uid}.service"):
        return CgroupOwner(OwnerKind.USER_SESSION, name, user=uid)
    for suffix, kind in (
        (".service", OwnerKind.SERVICE),
        (".slice", OwnerKind.SLICE),
        (".scope", OwnerKind.SCOPE),
        (".socket", OwnerKind.SERVICE),
        (".mount", OwnerKind.SERVICE),
    ):
        if name.endswith(suffix):
            return CgroupOwner(kind, name, user=uid)
    return CgroupOwner(OwnerKind.OTHER, path, user=uid)
