"""The volume plugins: claims restrict a pod to its volumes, or volumes are found for the chosen node (spec 05 §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.plugins.volumes import (
    NodeVolumeLimits,
    VolumeBinding,
    VolumeRestrictions,
    VolumeZone,
    matching,
)
from koordlet.api.core import PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from koordlet.api.core.storage import CSIDriver, CSINode, CSIStorageCapacity
from koordlet.api.encoding import wire
from koordlet.api.meta import ObjectReference
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import TOYS, cycle_of
from tests.present import present

NAMES = ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone")
POINTS = dict.fromkeys(("preFilter", "filter"), NAMES) | {
    "reserve": ("VolumeBinding",),
    "preBind": ("VolumeBinding",),
}
REGISTRY = {**TOYS, **{p.name: p for p in (VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone)}}
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"


class Objects:
    """Informers over lists that tests change."""

    def __init__(self, *objects: msgspec.Struct) -> None:
        self.all = list(objects)

    def informer(self, kind: type) -> Any:
        def of_kind() -> list[Any]:
            return [stored for stored in self.all if isinstance(stored, kind)]

        return SimpleNamespace(
            list=of_kind, get=lambda key: next((o for o in of_kind() if o.metadata.key == key), None)
        )


class Patches:
    """Takes patches as the API server would, and binds what is provisioned, as a provisioner would."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.sent: list[tuple[str, str, Any]] = []
        self.binds = True

    async def patch(self, kind: type, name: str, namespace: str | None = None, *, body: Any) -> Any:
        self.sent.append((kind.__name__, name, body))
        old = next(stored for stored in self._objects.all if isinstance(stored, kind) and stored.metadata.name == name)  # type: ignore[attr-defined]
        new = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, resource_version="2"))  # type: ignore[attr-defined]
        new.metadata.annotations = {**old.metadata.annotations, **body["metadata"]["annotations"]}  # type: ignore[attr-defined]
        ref = body.get("spec", {}).get("claimRef")
        if ref is not None:
            new.spec = msgspec.structs.replace(old.spec, claim_ref=wire.convert(ref, ObjectReference))  # type: ignore[attr-defined]
        self._objects.all[self._objects.all.index(old)] = new
        for claim in [claim for claim in self._objects.all if isinstance(claim, PersistentVolumeClaim)]:
            if self.binds and claim.metadata.name in (name, (ref or {}).get("name")):
                volume_name = name if kind is PersistentVolume else "made"
                self._objects.all[self._objects.all.index(claim)] = bind(claim, volume_name)
        return new


def bind(claim: PersistentVolumeClaim, volume: str) -> PersistentVolumeClaim:
    annotations = {**claim.metadata.annotations, "pv.kubernetes.io/bind-completed": "yes"}
    return msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, annotations=annotations),
        spec=msgspec.structs.replace(claim.spec, volume_name=volume),
    )


def claim(
    name: str, *, size: str = "1Gi", storage_class: str = "late", modes: Sequence[str] = ("ReadWriteOnce",), **more: Any
) -> PersistentVolumeClaim:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}", **more},
        "spec": {
            "accessModes": list(modes),
            "resources": {"requests": {"storage": size}},
            "storageClassName": storage_class,
        },
    }
    return wire.convert(body, PersistentVolumeClaim)


def volume(
    name: str, *, size: str = "1Gi", host: str = "", storage_class: str = "late", labels: Mapping[str, str] = {}
) -> PersistentVolume:
    spec: dict[str, Any] = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"],
        "storageClassName": storage_class,
        "csi": {"driver": "disk.csi", "volumeHandle": name},
    }
    if host:
        expressions = [{"key": HOST, "operator": "In", "values": [host]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    body = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec, "status": {"phase": "Available"}}
    return wire.convert(body, PersistentVolume)


def storage_class(
    name: str = "late", *, provisioner: str = "kubernetes.io/no-provisioner", **more: Any
) -> StorageClass:
    mode = "WaitForFirstConsumer" if name.startswith("late") else "Immediate"
    body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **more}
    return wire.convert(body, StorageClass)


def using(*claims: str, **more: Any) -> Pod:
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]
    return pod(spec={"volumes": volumes}, **more)


def ready(cluster: Cluster, *objects: msgspec.Struct) -> tuple[Cycle, Objects]:
    objects_of = Objects(*objects)
    return cycle_with(cluster, objects_of), objects_of


def cycle_with(cluster: Cluster, objects: Objects) -> Cycle:
    cluster.use(objects=objects)
    return cycle_of(cluster, POINTS, REGISTRY)


def refusal(cycle: Cycle, cluster: Cluster, pod: Pod) -> str:
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod))
    return failure.value.text()


def hosts() -> Cluster:
    return Cluster(node("a", labels={ZONE: "z1"}), node("b", labels={ZONE: "z2"}))


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        ([claim("data", storage_class="now"), storage_class("now")], "unbound immediate PersistentVolumeClaims"),
        ([claim("data"), storage_class()], "2 node(s) didn't find available persistent volumes to bind"),
        ([claim("data", size="2Gi"), storage_class(), volume("pv")], "2 node(s) didn't find available"),
        ([bind(claim("data"), "lost")], 'persistentvolume "lost" not found'),
        (
            [claim("data", deletionTimestamp="2026-01-01T00:00:00Z"), storage_class()],
            'persistentvolumeclaim "data" is being deleted',
        ),
    ],
    ids=["missing", "immediate", "no volume", "too small", "volume gone", "deleted"],
)
def test_the_problem_of_a_claim_is_reported(objects: list[msgspec.Struct], message: str) -> None:
    cluster = hosts()
    cycle, _ = ready(cluster, *objects)
    assert message in refusal(cycle, cluster, using("data"))


def test_a_pod_without_claims_is_not_held_up() -> None:
    cluster = hosts()
    cycle, _ = ready(cluster)
    assert cycle.place(cluster.info(pod())).node in ("a", "b")


def test_a_bound_claim_holds_the_pod_to_its_volume() -> None:
    cluster = hosts()
    cycle, _ = ready(cluster, bind(claim("data"), "pv"), volume("pv", host="b"))
    assert cycle.place(cluster.info(using("data"))).node == "b"
    cluster.table.remove_node("b")
    expected = "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    assert refusal(cycle, cluster, using("data")) == expected


def test_two_pods_do_not_use_one_volume() -> None:
    cluster = hosts()
    cycle, _ = ready(cluster, claim("one"), claim("two"), storage_class(), volume("pv", host="a"))
    first = cycle.place(cluster.info(using("one")))
    assert first.node == "a"
    assert "didn't find available persistent volumes" in refusal(cycle, cluster, using("two"))
    cycle.release(first)
    assert cycle.place(cluster.info(using("two"))).node == "a"


def test_the_smallest_volume_that_suits_is_taken() -> None:
    cluster = Cluster(node("a"))
    volumes = (volume("large", size="9Gi"), volume("small", size="2Gi"), volume("tiny", size="1Gi"))
    objects = Objects(claim("data", size="2Gi"), storage_class(), *volumes)
    client = Patches(objects)
    cluster.use(client=client)
    cycle = cycle_with(cluster, objects)
    placement = cycle.place(cluster.info(using("data")))
    plugin = cycle.framework.plugins["VolumeBinding"]
    status = asyncio.run(plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod))
    assert status.ok
    ((kind, name, body),) = client.sent
    assert (kind, name) == ("PersistentVolume", "small")
    assert body["spec"]["claimRef"]["uid"] == "claim-data"


def test_a_volume_is_made_where_the_pod_goes() -> None:
    cluster = hosts()
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}]
    storage = storage_class(provisioner="disk.csi", allowedTopologies=topologies)
    objects = Objects(claim("data"), storage, volume("made", host="b", storage_class="other"))
    client = Patches(objects)
    cluster.use(client=client)
    cycle = cycle_with(cluster, objects)
    placement = cycle.place(cluster.info(using("data")))
    assert placement.node == "b"
    plugin = cycle.framework.plugins["VolumeBinding"]
    assert asyncio.run(plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod)).ok
    annotations = {"volume.kubernetes.io/selected-node": "b"}
    assert client.sent == [("PersistentVolumeClaim", "data", {"metadata": {"annotations": annotations}})]


def _without_node(objects: Objects, cluster: Cluster, placement: Placement) -> None:
    old = next(claim for claim in objects.all if isinstance(claim, PersistentVolumeClaim))
    meta = msgspec.structs.replace(old.metadata, annotations={}, resource_version="3")
    objects.all[objects.all.index(old)] = msgspec.structs.replace(old, metadata=meta)


def _far_volume(objects: Objects, cluster: Cluster, placement: Placement) -> None:
    old = next(claim for claim in objects.all if isinstance(claim, PersistentVolumeClaim))
    objects.all[objects.all.index(old)] = bind(old, "far")
    objects.all.append(volume("far", host="a"))


def _no_node(objects: Objects, cluster: Cluster, placement: Placement) -> None:
    cluster.table.remove_node("b")


def _no_pod(objects: Objects, cluster: Cluster, placement: Placement) -> None:
    cluster.table.remove_pod(placement.pod)


@pytest.mark.parametrize(
    ("happens", "problem"),
    [
        (_without_node, "provisioning failed for claim default/data"),
        (_far_volume, "volume far cannot be reached from node b"),
        (_no_node, "the node is gone"),
        (_no_pod, "the pod was deleted"),
    ],
    ids=["provisioning failed", "unreachable", "node deleted", "pod deleted"],
)
async def test_the_wait_for_volumes_ends_when_they_will_not_be_bound(
    happens: Callable[[Objects, Cluster, Placement], None], problem: str
) -> None:
    cluster = hosts()
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}]
    objects = Objects(claim("data"), storage_class(provisioner="disk.csi", allowedTopologies=topologies))
    client = Patches(objects)
    client.binds = False
    cluster.use(client=client)
    cycle = cycle_with(cluster, objects)
    placement = cycle.place(cluster.info(using("data")))
    plugin = cycle.framework.plugins["VolumeBinding"]
    waiting = asyncio.create_task(plugin.pre_bind(placement.state, placement.pod, placement.row, placement.pod.pod))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    happens(objects, cluster, placement)
    assert (await waiting).message == f"binding volumes: {problem}"


def test_a_claim_stays_with_the_node_that_was_selected_for_it() -> None:
    cluster = hosts()
    chosen = claim("data", annotations={"volume.kubernetes.io/selected-node": "a"})
    cycle, _ = ready(cluster, chosen, storage_class(provisioner="disk.csi"))
    assert cycle.place(cluster.info(using("data"))).node == "a"


def test_storage_capacity_is_heeded_where_the_driver_tells_it() -> None:
    cluster = hosts()
    driver: CSIDriver = wire.convert({"metadata": {"name": "disk.csi"}, "spec": {"storageCapacity": True}}, CSIDriver)

    def left(zone: str, amount: str) -> CSIStorageCapacity:
        body = {
            "metadata": {"name": zone, "namespace": "kube-system"},
            "nodeTopology": {"matchLabels": {ZONE: zone}},
            "storageClassName": "late",
            "capacity": amount,
        }
        return wire.convert(body, CSIStorageCapacity)

    late = storage_class(provisioner="disk.csi")
    cycle, objects = ready(cluster, claim("data", size="5Gi"), late, driver, left("z1", "1Gi"), left("z2", "9Gi"))
    placement = cycle.place(cluster.info(using("data")))
    assert placement.node == "b"
    cycle.release(placement)
    objects.all.pop()
    assert "2 node(s) did not have enough free storage" in refusal(cycle, cluster, using("data"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({ZONE: "z2"}, {"b"}),
        ({ZONE: "z1__z2"}, {"a", "b"}),
        ({"failure-domain.beta.kubernetes.io/zone": "z1"}, {"a"}),
        ({ZONE: "z9"}, set()),
    ],
    ids=["zone", "several", "old label", "nowhere"],
)
def test_zone_labels_of_volumes_hold_for_nodes(labels: dict[str, str], expected: set[str]) -> None:
    cluster = hosts()
    cycle, _ = ready(cluster, bind(claim("data"), "pv"), volume("pv", labels=labels))
    try:
        nodes = {cycle.place(cluster.info(using("data"))).node}
    except FitError as failure:
        nodes = set()
        assert failure.text() == "0/2 nodes are available: 2 node(s) had no available volume zone."
    assert nodes <= expected
    assert bool(nodes) == bool(expected)


@pytest.mark.parametrize(
    ("label", "nodes", "expected"),
    [
        (OLD_ZONE, {OLD_ZONE: "z1", ZONE: "z2"}, True),
        (OLD_ZONE, {ZONE: "z1"}, True),
        (ZONE, {OLD_ZONE: "z1"}, False),
        (ZONE, {}, True),
    ],
    ids=["the same label first", "old label of the volume", "old label of the node", "no label at all"],
)
def test_which_label_of_the_node_counts(label: str, nodes: dict[str, str], expected: bool) -> None:
    cluster = Cluster(node("a", labels=nodes))
    cycle, _ = ready(cluster, bind(claim("data"), "pv"), volume("pv", labels={label: "z1"}))
    if expected:
        assert cycle.place(cluster.info(using("data"))).node == "a"
    else:
        assert "no available volume zone" in refusal(cycle, cluster, using("data"))


def reserved_for(volume: PersistentVolume, name: str) -> PersistentVolume:
    volume.spec.claim_ref = ObjectReference(namespace="default", name=name)
    return volume


def changed(volume: PersistentVolume, **status: str) -> PersistentVolume:
    return msgspec.structs.replace(volume, status=msgspec.structs.replace(volume.status, **status))


@pytest.mark.parametrize(
    ("of_volume", "of_claim", "expected"),
    [(None, None, True), ("", None, True), ("fast", "fast", True), ("fast", None, False), (None, "fast", False)],
)
def test_a_volume_and_its_claim_have_the_same_attributes_class(
    of_volume: str | None, of_claim: str | None, expected: bool
) -> None:
    unbound, only = claim("data"), volume("pv")
    unbound.spec.volume_attributes_class_name = of_claim
    only.spec.volume_attributes_class_name = of_volume
    cluster = Cluster(node("a"))
    cycle, _ = ready(cluster, unbound, storage_class(), only)
    if expected:
        assert cycle.place(cluster.info(using("data"))).node == "a"
    else:
        assert "didn't find available persistent volumes" in refusal(cycle, cluster, using("data"))


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (reserved_for(volume("pv"), "data"), True),
        (reserved_for(volume("pv"), "another"), False),
        (reserved_for(volume("pv", size="512Mi"), "data"), False),
        (reserved_for(volume("pv", storage_class="other"), "data"), False),
        (changed(volume("pv"), phase="Released"), False),
        (changed(volume("pv"), phase=""), False),
        (changed(reserved_for(volume("pv"), "data"), phase=""), True),
    ],
    ids=["reserved", "for another", "too small", "other class", "released", "not there yet", "reserved and new"],
)
def test_volumes_that_may_be_taken(only: PersistentVolume, expected: bool) -> None:
    cluster = Cluster(node("a"))
    cycle, _ = ready(cluster, claim("data"), storage_class(), only)
    if expected:
        assert cycle.place(cluster.info(using("data"))).node == "a"
    else:
        assert "didn't find available persistent volumes" in refusal(cycle, cluster, using("data"))


def test_pods_with_one_claim_take_one_volume() -> None:
    """The second goes where the first took the volume; what is noted holds until both are through."""
    cluster = Cluster(node("a"), node("b"))
    volumes = (volume("near", size="2Gi", host="a"), volume("far", size="3Gi", host="b"))
    cycle, _ = ready(cluster, claim("data"), storage_class(), *volumes)
    first = cycle.place(cluster.info(using("data", "data")))
    second = cycle.place(cluster.info(using("data")))
    assert second.node == first.node
    assumed = cycle.framework.plugins["VolumeBinding"]._storage.assumed  # type: ignore[attr-defined]
    assert list(assumed.volumes.values()) == ["default/data"]
    cycle.release(first)
    assert list(assumed.volumes.values()) == ["default/data"]
    cycle.release(second)
    assert assumed.volumes == {}


def test_all_reasons_are_reported() -> None:
    cluster = hosts()
    bound = bind(claim("old"), "pv")
    cycle, _ = ready(cluster, bound, claim("new"), storage_class(), reserved_for(volume("pv", host="a"), "old"))
    assert refusal(cycle, cluster, using("old", "new")) == (
        "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity,"
        " 2 node(s) didn't find available persistent volumes to bind."
    )


def test_a_claim_made_for_a_pod_is_its_own() -> None:
    cluster = hosts()
    owning_pod = pod("own", spec={"volumes": [{"name": "v", "ephemeral": {}}]})
    cycle, objects = ready(cluster, storage_class(), volume("pv"))
    assert "waiting for ephemeral volume controller to create the persistentvolumeclaim" in refusal(
        cycle, cluster, owning_pod
    )
    objects.all.append(claim("own-v"))
    assert "PVC default/own-v was not created for pod default/own (pod is not owner)" in refusal(
        cycle, cluster, owning_pod
    )
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "own", "uid": owning_pod.metadata.uid, "controller": True}
    objects.all[-1] = claim("own-v", ownerReferences=[owner])
    assert cycle.place(cluster.info(owning_pod)).node


def test_a_read_write_once_pod_claim_is_used_by_one_pod() -> None:
    cluster = hosts()
    only = bind(claim("data", modes=["ReadWriteOncePod"]), "pv")
    cycle, _ = ready(cluster, only, volume("pv"))
    first = cycle.place(cluster.info(using("data")))
    assert "ReadWriteOncePod access mode" in refusal(cycle, cluster, using("data"))
    cycle.release(first)
    assert cycle.place(cluster.info(using("data"))).node


def test_a_read_write_once_pod_claim_is_preempted() -> None:
    cluster = hosts()
    only = bind(claim("data", modes=["ReadWriteOncePod"]), "pv")
    cluster.use(objects=Objects(only, volume("pv")))
    points = {**POINTS, "postFilter": ("DefaultPreemption",)}
    cycle = cycle_of(cluster, points, {**REGISTRY, "DefaultPreemption": DefaultPreemption})
    (user,) = cluster.put(using("data", on="b", priority=1))
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(using("data", priority=9)))
    assert failure.value.nominated == "b"
    assert failure.value.histogram() == (
        "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by"
        " another pod"
    )
    cluster.table.remove_pod(user)
    assert cycle.place(cluster.info(using("data", priority=9))).node


def disk(kind: str, **source: Any) -> Pod:
    return pod(spec={"volumes": [{"name": "disk", kind: source}]})


RBD = {"monitors": ["m", "n"], "image": "x"}


@pytest.mark.parametrize(
    ("there", "incoming", "clash"),
    [
        (disk("iscsi", iqn="x"), disk("iscsi", iqn="x"), True),
        (disk("iscsi", iqn="x", readOnly=True), disk("iscsi", iqn="x"), True),
        (disk("iscsi", iqn="x", readOnly=True), disk("iscsi", iqn="x", readOnly=True), False),
        (disk("iscsi", iqn="x"), disk("iscsi", iqn="y"), False),
        (disk("gcePersistentDisk", pdName="x"), disk("gcePersistentDisk", pdName="x"), True),
        (disk("awsElasticBlockStore", volumeID="x"), disk("awsElasticBlockStore", volumeID="x", readOnly=True), True),
        (disk("rbd", **RBD), disk("rbd", **{**RBD, "monitors": ["n", "o"]}), True),
        (disk("rbd", **RBD), disk("rbd", **{**RBD, "monitors": ["o"]}), False),
        (disk("rbd", **RBD), disk("rbd", **RBD, pool="other"), False),
    ],
    ids=[
        "iscsi", "one writes", "both read", "another", "gce", "aws is never shared", "rbd", "no monitor", "other pool"
    ],
)  # fmt: skip
def test_disks_that_pods_name_are_used_by_one_on_a_node(there: Pod, incoming: Pod, clash: bool) -> None:
    cluster = Cluster(node("a"))
    cycle, _ = ready(cluster)
    cluster.table.add_pod(cluster.info(there), "a")
    if clash:
        assert refusal(cycle, cluster, incoming) == "0/1 nodes are available: 1 node(s) had no available disk."
        cluster.table.set_node(node("b"))
    assert cycle.place(cluster.info(incoming)).node == ("b" if clash else "a")


def test_a_node_takes_no_more_volumes_than_its_driver_allows() -> None:
    cluster = Cluster(node("a"))
    drivers = [{"name": "disk.csi", "nodeID": "a", "allocatable": {"count": 2}}]
    limit: CSINode = wire.convert({"metadata": {"name": "a"}, "spec": {"drivers": drivers}}, CSINode)
    claims = [bind(claim(f"c{i}"), f"pv{i}") for i in range(3)]
    cycle, objects = ready(cluster, limit, *claims, *(volume(f"pv{i}") for i in range(3)))
    cycle.place(cluster.info(using("c0")))
    cycle.place(cluster.info(using("c0", "c1")))  # c0 is attached already
    third = using("c2")
    assert refusal(cycle, cluster, third) == "0/1 nodes are available: 1 node(s) exceed max volume count."
    drivers[0]["allocatable"] = {"count": 3}
    objects.all[0] = wire.convert({"metadata": {"name": "a"}, "spec": {"drivers": drivers}}, CSINode)
    assert cycle.place(cluster.info(third)).node == "a"  # nothing but the CSINode has changed


_PLACED = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), max_size=2, unique=True)), max_size=6)


@given(
    placed=_PLACED,
    requested=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    limits=st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3),
    drivers=st.lists(st.sampled_from(("disk.csi", "other.csi")), min_size=6, max_size=6),
)
def test_limits_are_those_of_plain_counting(placed: Any, requested: Any, limits: Any, drivers: Any) -> None:
    """Volumes that are attached or wanted, each once, by driver; told only where something is new."""
    cluster = Cluster(*(node(f"n{i}") for i in range(3)))
    objects: list[msgspec.Struct] = []
    for number, limit in enumerate(limits):
        drivers_of = [] if limit is None else [{"name": "disk.csi", "nodeID": "n", "allocatable": {"count": limit}}]
        body = {"metadata": {"name": f"n{number}"}, "spec": {"drivers": drivers_of}}
        objects.append(wire.convert(body, CSINode))
    for number, driver in enumerate(drivers):
        created = volume(f"pv{number}")
        assert created.spec.csi is not None
        created.spec.csi.driver = driver
        objects += [bind(claim(f"c{number}"), f"pv{number}"), created]
    cycle, _ = ready(cluster, *objects)
    attached: list[set[int]] = [set(), set(), set()]
    for on, used in placed:
        cluster.put(using(*(f"c{number}" for number in used), on=f"n{on}"))
        attached[on].update(used)
    plugin = cycle.framework.plugins["NodeVolumeLimits"]
    state, info = CycleState(), cluster.info(using(*(f"c{number}" for number in requested)))
    assert plugin.pre_filter(state, info).status.ok
    fits = plugin.filter(state, info, cluster.table.all).tolist()
    for row, limit in enumerate(limits):
        of_driver = {number for number in range(6) if drivers[number] == "disk.csi"}
        new = (set(requested) - attached[row]) & of_driver
        too_many = limit is not None and bool(new) and len(new) + len(attached[row] & of_driver) > limit
        assert bool(fits[row]) == too_many


_ZONES = st.sampled_from(("z1", "z2", "z3", None))


@given(
    zones=st.lists(_ZONES, min_size=1, max_size=8),
    volumes=st.lists(st.tuples(st.sampled_from(("1Gi", "4Gi")), st.sampled_from(("", "z1", "n0", "n1"))), max_size=4),
    claims=st.lists(st.tuples(st.sampled_from(("1Gi", "3Gi")), st.sampled_from(("late", "late-made"))), max_size=3),
    allowed=st.none() | st.lists(st.sampled_from(("z1", "z2")), min_size=1),
    left=st.none() | st.lists(st.tuples(st.sampled_from(("z1", "z2")), st.sampled_from(("1Gi", "9Gi"))), max_size=3),
    chosen=st.booleans(),
)
def test_nodes_that_are_alike_answer_alike(
    zones: list[str | None], volumes: Any, claims: Any, allowed: Any, left: Any, chosen: bool
) -> None:
    """Each node is asked for itself, and the answers are those of its kind."""
    cluster = Cluster(*(node(f"n{i}", labels={ZONE: zone} if zone else {}) for i, zone in enumerate(zones)))
    topologies = [] if allowed is None else [{"matchLabelExpressions": [{"key": ZONE, "values": allowed}]}]
    driver: CSIDriver = wire.convert(
        {"metadata": {"name": "disk.csi"}, "spec": {"storageCapacity": left is not None}}, CSIDriver
    )
    objects: list[msgspec.Struct] = [
        driver, storage_class(), storage_class("late-made", provisioner="disk.csi", allowedTopologies=topologies),
    ]  # fmt: skip
    for number, (zone, amount) in enumerate(left or ()):
        body = {
            "metadata": {"name": f"cap{number}"}, "nodeTopology": {"matchLabels": {ZONE: zone}},
            "storageClassName": "late-made", "capacity": amount,
        }  # fmt: skip
        objects.append(wire.convert(body, CSIStorageCapacity))
    for number, (size, where) in enumerate(volumes):
        local = volume(f"pv{number}", size=size, host=where)
        if where.startswith("z"):
            assert local.spec.node_affinity is not None
            (term,) = present(local.spec.node_affinity.required).node_selector_terms
            term.match_expressions[0].key = ZONE
        objects.append(local)
    for number, (size, kind) in enumerate(claims):
        notes = {"volume.kubernetes.io/selected-node": "n0"} if chosen and number == 0 else {}
        objects.append(claim(f"c{number}", size=size, storage_class=kind, annotations=notes))
    cycle, _ = ready(cluster, *objects)
    plugin = cycle.framework.plugins["VolumeBinding"]
    state, info = CycleState(), cluster.info(using(*(f"c{number}" for number in range(len(claims)))))
    if plugin.pre_filter(state, info).status.skipped:
        return
    together = plugin.filter(state, info, cluster.table.all).tolist()
    apart = [plugin.filter(state, info, np.array([row])).item(0) for row in range(cluster.table.size)]
    assert together == apart
    plans = [
        matching.plan(plugin._storage, state.data["VolumeBinding"], cluster.table.node(row))  # type: ignore[attr-defined]
        for row in range(cluster.table.size)
    ]
    assert [isinstance(plan, str) for plan in plans] == [bool(answer) for answer in together]
