"""Devices inside reservations (spec 06 §3.9)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.devices.holdings import NodeDeviceHoldings, PodDevices, left_by
from control.devices.room import HeldDevice
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import Plugin
from control.scheduler.plugins.deviceshare import DeviceShare
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.reservation import Reservation
from tests.control.reservation.reservationbuild import reservation
from tests.control.scheduler.build import node
from tests.control.scheduler.plugins import reservationworld
from tests.control.scheduler.plugins.deviceworld import ALLOCATABLE, allocated, device, gpu, machine, rdma, with_devices
from tests.control.scheduler.plugins.reservationworld import ReservationWorld

KEY = names.ANNOTATION_DEVICE_ALLOCATED
OWNERS = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
NEEDS = {names.ANNOTATION_RESERVATION_AFFINITY: "{}"}
ORDERS = list(itertools.permutations((Node, Reservation, Pod)))
POINTS: Mapping[str, Sequence[str]] = {
    point: ("DeviceShare", *plugins) if point in ("preFilter", "filter", "score", "reserve", "preBind") else plugins
    for point, plugins in reservationworld.POINTS.items()
}
PLUGINS: Mapping[str, type[Plugin]] = {**reservationworld.PLUGINS, "DeviceShare": DeviceShare}


class ReservedDevices(ReservationWorld):
    """One node `n0` with these devices."""

    def __init__(self, *devices: Mapping[str, Any]) -> None:
        self._devices = devices or machine()
        super().__init__(128, points=POINTS, plugins=PLUGINS)

    def restart(self, order: Sequence[type[Any]] = (Node, Reservation, Pod)) -> None:
        self.stored[Node]["n0"] = node("n0", cpu="128", memory="64Gi", **ALLOCATABLE)
        super().restart(order)
        self.objects.informer(Device).put(device("n0", self._devices))
        plugin = self.cycle.framework.plugins["DeviceShare"]
        assert isinstance(plugin, DeviceShare)
        self.devices = plugin

    def prepared(self, placement: Placement) -> Pod:
        changed = super().prepared(placement)
        assert asyncio.run(self.devices.pre_bind(placement.state, placement.pod, placement.row, changed)).ok
        return changed

    def patched(self, live: Reservation, prepared: Pod) -> Reservation:
        annotations = {key: text for key, text in live.metadata.annotations.items() if key != KEY}
        if KEY in prepared.metadata.annotations:
            annotations[KEY] = prepared.metadata.annotations[KEY]
        return msgspec.structs.replace(live, metadata=msgspec.structs.replace(live.metadata, annotations=annotations))

    def minors(self, name: str, kind: str = "gpu") -> list[int]:
        held = self.stored[Reservation].get(name) or self.pod(name)
        return [device["minor"] for device in json.loads(held.metadata.annotations.get(KEY, "{}")).get(kind, [])]


def reserved(policy: str, requests: Mapping[str, str], **more: Any) -> Reservation:
    template = {
        "metadata": {"annotations": more.pop("annotations", {})},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9000,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "8", "memory": "8Gi", **requests}}}],
        },
    }
    once = more.pop("allocateOnce", False)
    return reservation("r1", template=template, owners=OWNERS, allocatePolicy=policy, allocateOnce=once, **more)


def web(name: str, requests: Mapping[str, str], **more: Any) -> Pod:
    return with_devices(requests, name=name, labels={"app": "web"}, **more)


TWO, ONE = {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
def test_an_owner_gets_reserved_devices_and_others_get_the_rest(policy: str) -> None:
    world = ReservedDevices()
    world.schedule(with_devices({"nvidia.com/gpu": "3"}, name="before"))
    assert world.schedule(reserved(policy, TWO)) == "n0"
    assert world.minors("r1") == [4, 5]
    assert world.schedule(with_devices({"nvidia.com/gpu": "3"}, name="other")) == "n0"
    assert set(world.minors("other")) == {3, 6, 7}
    assert "Insufficient GPU Devices" in world.schedule(with_devices(ONE, name="late"))
    assert world.schedule(web("p1", ONE)) == "n0"
    assert world.owner_of("p1") == "r1"
    assert world.schedule(web("p2", ONE)) == "n0"
    assert (world.minors("p1"), world.minors("p2")) == ([4], [5])


def designating(name: str, *minors: int, **more: Any) -> Pod:
    """It designates these GPUs."""
    whole = {names.RESOURCE_GPU_CORE: "100", names.RESOURCE_GPU_MEMORY_RATIO: "100"}
    annotations = {
        names.ANNOTATION_SCHEDULING_HINT: json.dumps({"extensions": {"DeviceShare": {}}}),
        KEY: json.dumps({"gpu": [{"minor": minor, "resources": whole} for minor in minors]}),
        **more.pop("annotations", {}),
    }
    return with_devices({"nvidia.com/gpu": str(len(minors))}, name=name, annotations=annotations, **more)


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
def test_an_owner_gets_the_reserved_devices_that_it_designates(policy: str) -> None:
    world = ReservedDevices()
    world.schedule(reserved(policy, TWO))
    assert world.minors("r1") == [0, 1]
    assert "Insufficient" in world.schedule(designating("other", 1))
    assert world.schedule(designating("p1", 1, labels={"app": "web"})) == "n0"
    assert (world.minors("p1"), world.owner_of("p1")) == ([1], "r1")
    assert "Insufficient" in world.schedule(designating("p2", 1, labels={"app": "web"}, annotations=NEEDS))
    assert world.schedule(designating("free", 5)) == "n0"
    assert world.minors("free") == [5]


def test_an_owner_of_a_restricted_reservation_cannot_designate_other_devices() -> None:
    world = ReservedDevices()
    world.schedule(reserved("Restricted", TWO))
    assert "Reservation(s)" in world.schedule(designating("p1", 6, labels={"app": "web"}, annotations=NEEDS))


def test_an_owner_of_an_aligned_reservation_takes_the_rest_from_the_node() -> None:
    world = ReservedDevices()
    world.schedule(reserved("Aligned", TWO))
    assert world.schedule(web("p1", {"nvidia.com/gpu": "4"})) == "n0"
    assert set(world.minors("r1")) <= set(world.minors("p1"))


def test_an_owner_of_a_restricted_reservation_gets_nothing_else() -> None:
    world = ReservedDevices()
    world.schedule(reserved("Restricted", TWO))
    assert "Reservation(s)" in world.schedule(web("p1", {"nvidia.com/gpu": "3"}, annotations=NEEDS))


def test_a_reservation_is_free_again_when_its_owner_is_gone() -> None:
    world = ReservedDevices(gpu(0))
    world.schedule(reserved("Restricted", ONE))
    world.schedule(web("p1", ONE, annotations=NEEDS))
    world.delete(world.pod("p1"))
    assert "Insufficient GPU Devices" in world.schedule(with_devices(ONE, name="other"))
    assert world.schedule(web("p2", ONE, annotations=NEEDS)) == "n0"


def test_shares_of_a_reserved_gpu_and_nic() -> None:
    world = ReservedDevices(gpu(0), rdma(1))
    world.schedule(reserved("Restricted", {"koordinator.sh/gpu": "60", "koordinator.sh/rdma": "40"}))
    half = {"koordinator.sh/gpu": "30", "koordinator.sh/rdma": "20"}
    assert [world.schedule(web(name, half, annotations=NEEDS)) for name in ("p1", "p2")] == ["n0", "n0"]
    assert "Reservation(s)" in world.schedule(web("p3", half, annotations=NEEDS))
    used = world.devices.page("n0")["deviceUsed"]
    assert (used["koordinator.sh/gpu-core"], used["koordinator.sh/rdma"]) == ("60", "40")
    assert world.schedule(with_devices({"koordinator.sh/gpu": "40"}, name="other")) == "n0"


@pytest.mark.parametrize("order", ORDERS)
def test_a_restart_in_any_order_counts_nothing_twice(order: Sequence[type[Any]]) -> None:
    world = ReservedDevices()
    world.schedule(reserved("Aligned", TWO))
    world.schedule(web("p1", {"nvidia.com/gpu": "3"}))
    world.schedule(with_devices({"koordinator.sh/gpu": "50"}, name="other"))
    before = world.devices.page("n0")
    world.restart(order)
    assert world.devices.page("n0") == before
    assert world.devices.book.malformed["conflict"] == 0
    assert before["deviceUsed"]["koordinator.sh/gpu-core"] == "350"


def test_the_annotation_of_a_template_counts_nowhere() -> None:
    world = ReservedDevices(gpu(0), gpu(1))
    claim = json.dumps({"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "100"}}]})
    assert world.schedule(reserved("Aligned", ONE, annotations={KEY: claim})) == "n0"
    assert world.minors("r1") == [0]


AMOUNTS = st.dictionaries(st.sampled_from(("a", "b")), st.integers(1, 100), min_size=1)
HOLDINGS = st.dictionaries(
    st.just("gpu"),
    st.lists(
        st.builds(
            HeldDevice,
            st.integers(0, 2),
            AMOUNTS,
            st.lists(st.sampled_from(((0, "x"), (0, "y"))), unique=True).map(tuple),
        ),
        max_size=3,
        unique_by=lambda device: device.minor,
    ).map(tuple),
)


@given(st.dictionaries(st.sampled_from("rpqs"), HOLDINGS), st.permutations("rpqs"), st.permutations("rpqs"))
def test_sums_do_not_depend_on_the_order_and_end_at_nothing(
    listed: dict[str, Any], arrive: Sequence[str], leave: Sequence[str]
) -> None:
    """`r` is a reservation that p and q use."""
    expected, holdings = NodeDeviceHoldings(), NodeDeviceHoldings()
    pod_devices = {uid: PodDevices(held, "r" if uid in "pq" else "") for uid, held in listed.items()}
    for uid in sorted(pod_devices):
        expected.add(uid, pod_devices[uid])
    for uid in arrive:
        if uid in pod_devices:
            holdings.add(uid, pod_devices[uid])
    assert holdings.sums.keys() == expected.sums.keys()
    with holdings.without(["r"]):
        plain = NodeDeviceHoldings()
        for uid, holding in pod_devices.items():
            if uid != "r":
                plain.add(uid, holding)
        assert holdings.sums.keys() == plain.sums.keys()
    assert holdings.sums.keys() == expected.sums.keys()
    for uid in leave:
        holdings.remove(uid)
    assert not any(holdings.sums.keys().values())


def test_what_owners_leave() -> None:
    whole = {"gpu": (HeldDevice(0, {"a": 100}, ((0, "x"), (0, "y"))),)}
    owner = {"gpu": (HeldDevice(0, {"a": 130}, ((0, "x"),)),)}
    assert left_by(whole, [owner]) == {"gpu": (HeldDevice(0, {}, ((0, "y"),)),)}
    assert left_by(whole, []) == whole


def test_a_pod_without_devices_is_no_conflict() -> None:
    world = ReservedDevices(gpu(0))
    world.schedule(with_devices({}, name="plain"))
    assert allocated(world.pod("plain")) == {}
