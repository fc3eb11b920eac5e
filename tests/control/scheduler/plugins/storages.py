"""Random claims, volumes and classes, and informers over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from koordlet.api.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordlet.api.core.storage import CSIDriver, CSINode, CSIStorageCapacity
from koordlet.api.encoding import wire
from tests.control.scheduler.plain.world import Storage

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
BETA = "volume.beta.kubernetes.io/storage-class"
CLASSES = ("late", "late-made", "now", "no-mode", "")
SIZES = st.sampled_from(("1Gi", "2Gi", "4Gi"))
ZONES = st.sampled_from(("z1", "z2", "z1__z2", "z1__", "z9"))
MODES = st.lists(st.sampled_from(("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany")), min_size=1, unique=True)


class StorageObjects:
    """`Objects` of a handle, over a `Storage`; everything else is empty."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def informer(self, kind: type[Any]) -> Any:
        def of_kind() -> list[Any]:
            storage = self.storage
            everything = (
                *storage.claims, *storage.volumes, *storage.classes, *storage.nodes, *storage.drivers,
                *storage.capacities,
            )  # fmt: skip
            return [stored for stored in everything if isinstance(stored, kind)]

        return SimpleNamespace(
            list=of_kind,
            get=lambda key: next((stored for stored in of_kind() if stored.metadata.key == key), None),
            add_handler=lambda *_, **__: None,
        )


@st.composite
def claims(draw: st.DrawFn, name: str, owner: str = "") -> PersistentVolumeClaim:
    """Mostly in order; `owner`: uid of the pod that it was made for."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"claim-{name}", "annotations": {}}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}
        ]
    spec: dict[str, Any] = {
        "accessModes": draw(MODES),
        "storageClassName": draw(st.sampled_from(("late", "late", "late-made"))),
    }
    if draw(st.integers(0, 9)):
        spec["resources"] = {"requests": {"storage": draw(SIZES)}}
    if draw(st.integers(0, 9)) == 0:
        spec["selector"] = {"matchLabels": {"tier": "fast"}}
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2:
            spec["volumeName"] = f"pv{draw(st.integers(0, 4))}"
            metadata["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
        case 4:
            metadata["annotations"]["volume.kubernetes.io/selected-node"] = draw(st.sampled_from(("n0", "n1", "")))
            spec["storageClassName"] = "late-made"
    phase = ""
    match draw(st.integers(0, 39)):
        case 39:
            phase = "Lost"
        case 1:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        case 2:
            metadata["annotations"][BETA] = draw(st.sampled_from(CLASSES))
        case 3:
            spec["volumeMode"] = "Block"
        case 4:
            spec["storageClassName"] = draw(st.sampled_from(CLASSES))
        case 5:
            spec["volumeName"] = "pv0"  # bound by hand, and not through yet
    return wire.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, PersistentVolumeClaim)


@st.composite
def volumes(draw: st.DrawFn, name: str) -> PersistentVolume:
    metadata: dict[str, Any] = {"name": name, "labels": {"tier": draw(st.sampled_from(("fast", "slow")))}}
    spec: dict[str, Any] = {
        "capacity": {"storage": draw(SIZES)},
        "accessModes": draw(MODES),
        "storageClassName": draw(st.sampled_from(("late", "late", "late", "late-made"))),
    }
    if draw(st.integers(0, 4)):
        driver = draw(st.sampled_from(("disk.csi", "other.csi")))
        spec["csi"] = {"driver": driver, "volumeHandle": draw(st.sampled_from((name, name, "shared", "")))}
    match draw(st.integers(0, 7)):
        case 5 | 6:
            where = {"key": ZONE, "operator": "In", "values": [draw(st.sampled_from(("z1", "z2")))]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}
        case 2:
            where = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchFields": [where]}]}}
        case 3 | 4:
            metadata["labels"][draw(st.sampled_from((ZONE, OLD_ZONE)))] = draw(ZONES)
    phase = "Available"
    match draw(st.integers(0, 19)):
        case 18 | 19:
            claimed = f"c{draw(st.integers(0, 3))}"
            spec["claimRef"] = {"namespace": "default", "name": claimed}
            if draw(st.booleans()):
                spec["claimRef"]["uid"] = draw(st.sampled_from((f"claim-{claimed}", "another")))
        case 2:
            phase = draw(st.sampled_from(("", "Released")))
        case 3:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        case 4:
            metadata["annotations"] = {BETA: draw(st.sampled_from(("late", "late-made")))}
        case 5:
            spec["volumeMode"] = "Block"
    return wire.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, PersistentVolume)


@st.composite
def storages(draw: st.DrawFn, nodes: int) -> Storage:
    """Claims c0… and volumes pv0…; classes as their names say; limits and capacities of driver disk.csi."""
    terms = st.lists(st.lists(st.sampled_from(("z1", "z2")), min_size=1, unique=True), max_size=2)
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": values}]} for values in draw(terms)]
    if draw(st.integers(0, 9)) == 0:
        allowed.append({"matchLabelExpressions": []})
    wait = {"volumeBindingMode": "WaitForFirstConsumer"}
    none = "kubernetes.io/no-provisioner"
    classes: list[dict[str, Any]] = [
        {"metadata": {"name": "late"}, "provisioner": none, **wait},
        {"metadata": {"name": "late-made"}, "provisioner": "disk.csi", "allowedTopologies": allowed, **wait},
        {"metadata": {"name": "now"}, "provisioner": "disk.csi", "volumeBindingMode": "Immediate"},
        {"metadata": {"name": "no-mode"}, "provisioner": "disk.csi"},
    ]
    limited: list[dict[str, Any]] = []
    for number in range(nodes):
        limit = draw(st.none() | st.integers(0, 3))
        drivers = [] if limit is None else [{"name": "disk.csi", "nodeID": "n", "allocatable": {"count": limit}}]
        limited.append({"metadata": {"name": f"n{number}"}, "spec": {"drivers": drivers}})
    capacities: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 3))):
        capacity = {"metadata": {"name": f"cap{number}"}, "storageClassName": "late-made", "capacity": draw(SIZES)}
        if draw(st.integers(0, 5)):
            capacity["nodeTopology"] = {"matchLabels": {ZONE: draw(st.sampled_from(("z1", "z2")))}}
        if draw(st.integers(0, 3)) == 0:
            capacity["maximumVolumeSize"] = draw(st.sampled_from(("0", "1Gi", "4Gi")))
        capacities.append(capacity)
    driver = {"metadata": {"name": "disk.csi"}, "spec": {"storageCapacity": draw(st.booleans())}}
    return Storage(
        claims=[draw(claims(f"c{number}")) for number in range(4)],
        volumes=[draw(volumes(f"pv{number}")) for number in range(draw(st.integers(2, 5)))],
        classes=[wire.convert(body, StorageClass) for body in classes],
        nodes=[wire.convert(body, CSINode) for body in limited],
        drivers=[wire.convert(driver, CSIDriver)],
        capacities=[wire.convert(body, CSIStorageCapacity) for body in capacities],
    )


@st.composite
def pod_volumes(draw: st.DrawFn, *, generated: bool = True) -> list[dict[str, Any]]:
    """Volumes of a pod: claims, claims made for it (`made`), and disks named directly."""
    volumes: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 3))):
        name, reads = f"v{number}", draw(st.booleans())
        source: dict[str, Any]
        match draw(st.integers(0, 11)):
            case 0:
                source = {"iscsi": {"iqn": draw(st.sampled_from("ab")), "readOnly": reads}}
            case 1:
                source = {"gcePersistentDisk": {"pdName": draw(st.sampled_from("ab")), "readOnly": reads}}
            case 2:
                source = {"awsElasticBlockStore": {"volumeID": draw(st.sampled_from("ab")), "readOnly": reads}}
            case 3:
                monitors = draw(st.lists(st.sampled_from("mno"), min_size=1, unique=True))
                source = {"rbd": {"monitors": monitors, "image": draw(st.sampled_from("ab")), "readOnly": reads}}
            case 4 if generated:
                source = {"ephemeral": {}}
            case 5:
                source = {"persistentVolumeClaim": {"claimName": f"c{draw(st.integers(0, 4))}"}}
            case _:
                source = {"persistentVolumeClaim": {"claimName": f"c{draw(st.integers(0, 3))}"}}
        volumes.append({"name": name, **source})
    return volumes
