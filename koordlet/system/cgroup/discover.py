"""Which cgroups a host has and whose they are: pods and containers of a kubelet, or everything on any Linux host.

The first two functions follow the kubelet's layout and leave out what is not named like it. :func:`discover` needs
no Kubernetes: it walks the hierarchies that carry our numbers and lets :mod:`koordlet.system.cgroup.owners` judge
each path.
On v1 a group may exist for one controller only, so that walk is a union.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.system.cgroup import naming, owners, tree
from koordlet.system.cgroup.naming import CgroupDriver, ContainerId, KubeQOS, NamingError
from koordlet.system.cgroup.readers import CgroupFS

MAX_DEPTH = 8
MAX_CGROUPS = 4096
_WALKED = ("cpu", "cpuacct", "memory")


@dataclass(frozen=True, slots=True)
class PodDir:
    """``uid`` as the directory spells it, see :func:`koordlet.system.cgroup.naming.same_uid`."""

    uid: str
    qos: KubeQOS
    dir: str


@dataclass(frozen=True, slots=True)
class ContainerDir:
    id: ContainerId
    """The runtime is empty with the cgroupfs driver."""
    dir: str


@dataclass(frozen=True, slots=True)
class FoundCgroup:
    dir: str
    owner: owners.CgroupOwner


def pod_dirs(fs: CgroupFS, driver: CgroupDriver) -> list[PodDir]:
    """Every pod of the three QoS directories, in lexical order within each."""
    found = []
    for qos in KubeQOS:
        parent = naming.qos_dir(driver, qos)
        for name in tree.children(fs.hierarchy("cpu"), parent):
            try:
                found.append(PodDir(naming.parse_pod_name(driver, name), qos, f"{parent}/{name}"))
            except NamingError:  # a QoS directory, or somebody else's group
                continue
    return found


def container_dirs(fs: CgroupFS, driver: CgroupDriver, pod_dir: str) -> list[ContainerDir]:
    """The containers of a pod, its sandbox among them."""
    found = []
    for name in tree.children(fs.hierarchy("cpu"), pod_dir):
        try:
            found.append(ContainerDir(naming.parse_container_name(driver, name), f"{pod_dir}/{name}"))
        except NamingError:  # e.g. init.scope of a systemd in the pod
            continue
    return found


def discover(fs: CgroupFS, *, max_depth: int = MAX_DEPTH, limit: int = MAX_CGROUPS) -> list[FoundCgroup]:
    """Every cgroup down to *max_depth*, parents first; at most *limit*, the shallowest ones."""
    roots = {fs.hierarchy(controller) for controller in _WALKED}
    dirs = {path for root in roots for path in tree.walk(root, "", max_depth)}
    ordered = sorted(dirs, key=lambda path: (path.count("/") + bool(path), path))
    return [FoundCgroup(path, owners.classify(path)) for path in sorted(ordered[:limit])]
