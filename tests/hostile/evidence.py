"""What attackers must not change: cgroup values, objects of others, files of the host, and the node's processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from control.ctl.demo.kernelfiles import find_group
from tests.hostile.node import ATTACKER, FOREIGN_NODE, MARK, SERVICE, TENANT, VICTIM, AttackedNode

FILES = {
    "cpu": ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.max", "cpu.weight"),
    "memory": ("memory.limit_in_bytes", "memory.max", "memory.min", "memory.low", "memory.high"),
    "cpuset": ("cpuset.cpus",),
}  # fmt: skip
"""By controller of cgroup v1; on v2 all files are in one directory."""
OBJECTS = {
    "foreign node": f"/api/v1/nodes/{FOREIGN_NODE}",
    "foreign NodeMetric": f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{FOREIGN_NODE}",
    "secret": f"/api/v1/namespaces/{VICTIM}/secrets/secret",
    "role bindings": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "pods of the system": "/api/v1/namespaces/kube-system/pods",
}


@dataclass(frozen=True)
class Evidence:
    """A reading; two readings are compared by `differences`."""

    cgroups: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    oom_scores: dict[str, frozenset[str]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    sentinel: str = ""


async def read(node: AttackedNode) -> Evidence:
    """The present state. Raises RuntimeError if an object or a cgroup is missing."""
    cgroups: dict[str, str] = {}
    scores: dict[str, frozenset[str]] = {}
    for namespace, name in ((VICTIM, SERVICE), (TENANT, ATTACKER)):
        pod = await node.admin.must("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        for controller, files in FILES.items():
            group = find_group(pod["metadata"]["uid"], controller)
            if group is None:
                raise RuntimeError(f"pod {name} has no cgroup of controller {controller}")
            for directory in (group, *(path for path in group.iterdir() if path.is_dir())):
                for file in files:
                    if (directory / file).exists():
                        place = "pod" if directory == group else "container"
                        cgroups[f"{name} {place} {file}"] = (directory / file).read_text().strip()
            if controller == "cpu":
                scores[name] = _oom_scores(group)
    objects = {}
    for what, path in OBJECTS.items():
        answer = await node.admin.call("GET", path)
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {answer.text[:200]}")
        objects[what] = "changed by an attacker" if MARK in answer.text else "as before"
    return Evidence(cgroups, objects, scores, node.pids(), node.sentinel.read_text())


def _oom_scores(group: Path) -> frozenset[str]:
    pids = [pid for path in group.rglob("cgroup.procs") for pid in path.read_text().split()]
    return frozenset(Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in pids)


def differences(before: Evidence, after: Evidence) -> list[str]:
    """What changed, in words; empty if nothing did."""
    changed: list[str] = []
    for title in ("cgroups", "objects", "oom_scores", "pids"):
        old, new = getattr(before, title), getattr(after, title)
        changed += [
            f"{key}: {old.get(key)} -> {new.get(key)}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
        ]
    if before.sentinel != after.sentinel:
        changed.append(f"the file outside the cgroup tree: {after.sentinel}")
    return changed
