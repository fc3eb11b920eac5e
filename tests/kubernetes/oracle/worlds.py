"""Random worlds: nodes, objects that scheduling reads, pods on the nodes, and pods to schedule one after another.

Everything is JSON as a client would send it. A world is a function of its seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.kubernetes.oracle.podspecs import APPS, IMAGES, PodSpecs

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NAMESPACES: Final = {"default": {}, "blue": {"colour": "blue"}, "green": {"colour": "green"}}
"""With their labels. They exist in every world."""
ZONES: Final = ("z1", "z2", "z3")
Body = dict[str, Any]


@dataclass
class World:
    """See the module text. Objects of one kind are created at once, kinds in the order of `objects`."""

    seed: int
    objects: dict[str, list[Body]] = field(default_factory=dict)
    """Kind -> objects other than nodes and pods."""
    nodes: list[Body] = field(default_factory=list)
    bound: list[Body] = field(default_factory=list)
    """Pods with nodes."""
    pending: list[Body] = field(default_factory=list)


def make_world(seed: int) -> World:
    rng = Random(seed)
    world = World(seed)
    names = [f"n{number}" for number in range(rng.randint(1, 9))]
    world.nodes = [_node(rng, name) for name in names]
    world.objects = {
        "Service": [_service(rng, number) for number in range(rng.choice((0, 0, 1, 2)))],
        "ReplicaSet": [_replica_set(rng, number) for number in range(rng.choice((0, 0, 1, 2)))],
        "PodDisruptionBudget": [_budget(rng, number) for number in range(rng.choice((0, 0, 1, 2)))],
        "CSINode": [_csi_node(rng, name) for name in names if rng.random() < 0.5],
    }
    claims = [f"c{number}" for number in range(rng.choice((0, 0, 2, 4)))]
    world.objects["PersistentVolume"] = [_volume(rng, name, names) for name in claims]
    world.objects["PersistentVolumeClaim"] = [_claim(rng, name) for name in claims]
    specs = PodSpecs(rng, names, claims)
    alone = {claim["metadata"]["name"] for claim in world.objects["PersistentVolumeClaim"] if _exclusive(claim)}
    for number in range(rng.randint(0, 3 * len(names))):
        pod = specs.bound(f"b{number}", rng.choice(names))
        used = {
            volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"].get("volumes", ())
        } & alone
        if used:  # two pods with one ReadWriteOncePod claim cannot run
            specs.claims.remove(*used)
        world.bound.append(pod)
    specs.claims[:] = claims
    for number in range(rng.randint(3, 7)):
        world.pending.append(specs.pending(f"p{number}"))
    for member in (*world.bound, *world.pending):
        sets = [owner for owner in world.objects["ReplicaSet"] if _owns(owner, member)]
        if rng.random() < 0.05:  # an owner that does not select the pod
            sets = [owner for owner in world.objects["ReplicaSet"] if _beside(owner, member)]
        if sets and rng.random() < 0.6:
            kind = {"kind": "ReplicaSet", "apiVersion": rng.choice(("apps/v1",) * 9 + ("example.com/v1",))}
            member["metadata"]["ownerReferences"] = [{**kind, "name": sets[0]["metadata"]["name"]}]
    return world


def _exclusive(claim: Body) -> bool:
    return "ReadWriteOncePod" in claim["spec"]["accessModes"]


def _beside(owner: Body, pod: Body) -> bool:
    same: bool = owner["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same


def _owns(owner: Body, pod: Body) -> bool:
    return _beside(owner, pod) and owner["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def _node(rng: Random, name: str) -> Body:
    labels = {HOST: name, "disk": rng.choice(("ssd", "hdd")), "rank": str(rng.randint(0, 3))}
    if rng.random() < 0.85:
        labels[ZONE] = rng.choice(ZONES)
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    taints = [
        {"key": key, "value": rng.choice(("x", "y")), "effect": rng.choice(effects)}
        for key in ("dedicated", "gpu")
        if rng.random() < 0.1
    ]
    allocatable = {
        "cpu": rng.choice(("1", "2", "4", "4", "8", "1500m")),
        "memory": rng.choice(("1Gi", "4Gi", "8Gi", "16Gi")),
        "pods": str(rng.choice((2, 4, 8, 110))),
        "ephemeral-storage": rng.choice(("1Gi", "10Gi")),
    }
    if rng.random() < 0.25:
        allocatable["example.com/widget"] = str(rng.randint(0, 3))
    images = [
        {"names": [image, f"{image}@sha256:{'a' * 64}"], "sizeBytes": size}
        for image, size in IMAGES.items()
        if rng.random() < 0.3
    ]
    spec: Body = {"taints": taints, "unschedulable": rng.random() < 0.08}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable, "images": images},
    }  # fmt: skip


def _service(rng: Random, number: int) -> Body:
    spec = {"selector": {"app": rng.choice(APPS)}, "clusterIP": "None", "ports": [{"port": 80}]}
    if rng.random() < 0.3:
        spec["selector"]["tier"] = rng.choice(("front", "back"))  # type: ignore[index]
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(rng, f"s{number}"), "spec": spec}


def _replica_set(rng: Random, number: int) -> Body:
    labels = {"app": rng.choice(APPS)}
    if rng.random() < 0.3:
        labels["tier"] = rng.choice(("front", "back"))
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "img"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": _meta(rng, f"r{number}"), "spec": spec}


def _budget(rng: Random, number: int) -> Body:
    selector = {"matchLabels": {"app": rng.choice(APPS)}} if rng.random() < 0.9 else {}
    status = {
        "disruptionsAllowed": rng.randint(0, 2), "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3,
        "observedGeneration": 1,
    }  # fmt: skip
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": _meta(rng, f"d{number}"),
        "spec": {"maxUnavailable": 1, "selector": selector}, "status": status,
    }  # fmt: skip


def _csi_node(rng: Random, name: str) -> Body:
    driver = {"name": "disk.csi", "nodeID": name, "topologyKeys": [], "allocatable": {"count": rng.randint(0, 2)}}
    drivers = [driver] if rng.random() < 0.8 else []
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": drivers}}  # fmt: skip


def _volume(rng: Random, name: str, nodes: list[str]) -> Body:
    """The volume that is bound to the claim of this name."""
    meta: Body = {"name": f"pv-{name}", "labels": {}}
    spec: Body = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "claimRef": {"namespace": "default", "name": name, "kind": "PersistentVolumeClaim", "apiVersion": "v1"},
    }  # fmt: skip
    if rng.random() < 0.5:
        spec["csi"] = {"driver": "disk.csi", "volumeHandle": rng.choice((name, "shared"))}
    else:
        spec["local"] = {"path": "/disk"}
    match rng.randint(0, 3):
        case 0:
            where = {"key": ZONE, "operator": "In", "values": [rng.choice(ZONES)]}
        case 1:
            where = {"key": HOST, "operator": "In", "values": [rng.choice(nodes)]}
        case 2:
            meta["labels"][ZONE] = rng.choice(("z1", "z2", "z1__z2"))
            where = {"key": HOST, "operator": "Exists"}
        case _:
            where = {"key": HOST, "operator": "Exists"}
    spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec,
            "status": {"phase": "Bound"}}  # fmt: skip


def _claim(rng: Random, name: str) -> Body:
    mode = rng.choice(("ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"))
    spec: Body = {
        "accessModes": [mode], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}},
    }  # fmt: skip
    meta: Body = {"name": name, "namespace": "default", "annotations": {}}
    if rng.random() < 0.9:
        spec["volumeName"] = f"pv-{name}"
        meta["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec,
            "status": {"phase": "Bound"}}  # fmt: skip


def _meta(rng: Random, name: str) -> Body:
    return {"name": name, "namespace": rng.choice(("default", "default", "blue"))}
