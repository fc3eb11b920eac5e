"""Which device allocations koordlet accepts, regardless of who wrote the annotation."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.core import Pod, PodStatus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.times import Time
from koordlet.api.meta import ObjectMeta
from koordlet.statesinformer.pods.deviceallocation import (
    MAX_DEVICES,
    AllocatedDevices,
    accept_devices,
    devices_of_pod,
)

MINORS = {"gpu": {0, 1}, "rdma": {0}}
RATIO, CORE = names.RESOURCE_GPU_MEMORY_RATIO, names.RESOURCE_GPU_CORE


def pod(name: str, allocated: Any, *, phase: str = "Running", terminating: bool = False) -> Pod:
    text = allocated if isinstance(allocated, str) else json.dumps(allocated)
    meta = ObjectMeta(name=name, namespace="n", uid=name, annotations={names.ANNOTATION_DEVICE_ALLOCATED: text})
    if terminating:
        meta.deletion_timestamp = Time.parse("2026-01-01T00:00:00Z")
    return Pod(metadata=meta, status=PodStatus(phase=phase))


def gpu(minor: int, ratio: int | None = None, core: int | None = None) -> dict[str, Any]:
    amounts = {RATIO: ratio, CORE: core}
    return {"minor": minor, "resources": {key: str(value) for key, value in amounts.items() if value is not None}}


def nic(minor: int, *functions: str, percent: str = "1") -> dict[str, Any]:
    vfs = [{"minor": number, "busID": address} for number, address in enumerate(functions)]
    return {"minor": minor, "resources": {names.RESOURCE_RDMA: percent}, "extension": {"vfs": vfs}}


def accepted(*pods: Pod, held: tuple[str, ...] = (), minors: dict[str, set[int]] = MINORS) -> dict[str, str]:
    """Why each pod is refused, empty for those that are accepted."""
    allocations = {each.metadata.uid: (each, devices_of_pod(each)) for each in pods}
    before = {uid: allocations[uid][1] for uid in held}
    return {uid: result.refused for uid, result in accept_devices(allocations, before, minors.get).items()}


TOGETHER = {
    "halves of a GPU": ({"gpu": [gpu(0, 50, 50)]}, {"gpu": [gpu(0, 50, 50)]}),
    "two GPUs": ({"gpu": [gpu(0)]}, {"gpu": [gpu(1, 100)]}),
    "types with the same minor": ({"gpu": [gpu(0)]}, {"rdma": [{"minor": 0}]}),
    "functions of a NIC": ({"rdma": [nic(0, "0000:01:00.2")]}, {"rdma": [nic(0, "0000:01:00.3")]}),
}
APART = {
    "the same GPU": ({"gpu": [gpu(0, 100, 100)]}, {"gpu": [gpu(0, 1, 1)]}, "gpu 0"),
    "the same GPU without amounts": ({"gpu": [gpu(0)]}, {"gpu": [gpu(0)]}, "gpu 0"),
    "a part of a whole GPU": ({"gpu": [gpu(0)]}, {"gpu": [gpu(0, 1)]}, "gpu 0"),
    "the whole of a shared GPU": ({"gpu": [gpu(0, 1)]}, {"gpu": [gpu(0)]}, "gpu 0"),
    "more memory than is left": ({"gpu": [gpu(0, 60, 10)]}, {"gpu": [gpu(0, 41, 10)]}, "gpu 0"),
    "more cores than are left": ({"gpu": [gpu(0, 10, 60)]}, {"gpu": [gpu(0, 10, 41)]}, "gpu 0"),
    "one of two": ({"gpu": [gpu(1, 100)]}, {"gpu": [gpu(0, 100), gpu(1, 100)]}, "gpu 1"),
    "the same function": ({"rdma": [nic(0, "0000:01:00.2")]}, {"rdma": [nic(0, "0000:01:00.2")]}, "rdma 0000:01:00.2"),
}


@pytest.mark.parametrize(("first", "second"), TOGETHER.values(), ids=TOGETHER)
def test_pods_may_have_devices_beside_each_other(first: Any, second: Any) -> None:
    assert accepted(pod("a", first), pod("b", second)) == {"a": "", "b": ""}


@pytest.mark.parametrize(("first", "second", "unit"), APART.values(), ids=APART)
def test_the_pod_that_has_a_device_keeps_it(first: Any, second: Any, unit: str) -> None:
    for held in ("a", "b"):
        pods = (pod("a", first), pod("b", second)) if held == "a" else (pod("b", first), pod("a", second))
        refused = accepted(*pods, held=(held,))
        other = "b" if held == "a" else "a"
        assert refused == {held: "", other: f"{names.ANNOTATION_DEVICE_ALLOCATED}: pod n/{held} has {unit}"}


def test_a_terminating_pod_holds_nothing_against_the_next_one() -> None:
    whole = {"gpu": [gpu(0)]}
    refused = accepted(pod("new", whole), pod("old", whole, terminating=True), held=("old",))
    assert (refused["new"], bool(refused["old"])) == ("", True)


def test_a_finished_pod_has_no_devices() -> None:
    assert devices_of_pod(pod("a", {"gpu": [gpu(0)]}, phase="Failed")) == AllocatedDevices()


def test_devices_that_the_node_does_not_have_are_refused() -> None:
    assert accepted(pod("a", {"gpu": [gpu(7)]})) == {
        "a": f"{names.ANNOTATION_DEVICE_ALLOCATED}: this node has no gpu 7"
    }
    assert accepted(pod("a", {"gpu": [gpu(7)]}), minors={}) == {"a": ""}, "the node's GPUs are unknown"


MALFORMED = {
    "not JSON": "{",
    "a negative minor": {"gpu": [gpu(-1)]},
    "a large minor": {"gpu": [gpu(2**31 - 1)]},
    "a minor twice": {"gpu": [gpu(0, 1), gpu(0, 1)]},
    "a function twice": {"rdma": [nic(0, "a", "a")]},
    "more than all": {"gpu": [gpu(0, 101)]},
    "less than nothing": {"gpu": [gpu(0, 50, -1)]},
    "nothing of it": {"gpu": [gpu(0, 0, 0)]},
    "cores without memory": {"gpu": [gpu(0, None, 1)]},
    "nothing of a NIC": {"rdma": [nic(0, percent="0")]},
    "many devices": {"gpu": [{"minor": minor} for minor in range(MAX_DEVICES + 1)]},
    "a long text": "[" * 100_000,
}


@pytest.mark.parametrize("allocated", MALFORMED.values(), ids=MALFORMED)
def test_malformed_allocations_count_as_absent(allocated: Any) -> None:
    allocation = devices_of_pod(pod("a", allocated))
    assert (allocation.devices, allocation.shares) == ({}, ())
    assert allocation.error.startswith(f"pod n/a: annotation {names.ANNOTATION_DEVICE_ALLOCATED}")


SHARES = st.one_of(st.none(), st.integers(1, 100))
ALLOCATED = st.lists(
    st.builds(gpu, st.integers(0, 2), SHARES), max_size=3, unique_by=lambda device: device["minor"]
).map(lambda devices: {"gpu": devices})


@given(st.lists(ALLOCATED, max_size=6), st.sets(st.integers(0, 5)))
def test_no_device_is_given_more_than_once(allocated: list[Any], held: set[int]) -> None:
    pods = [pod(str(number), each) for number, each in enumerate(allocated)]
    allocations = {each.metadata.uid: (each, devices_of_pod(each)) for each in pods}
    before = {uid: allocations[uid][1] for uid in map(str, held) if uid in allocations}
    results = accept_devices(allocations, before, MINORS.get)
    assert results.keys() == allocations.keys()
    for minor in (0, 1, 2):
        users = [each for result in results.values() for each in result.devices.get("gpu", ()) if each.minor == minor]
        whole = Quantity.of(100)
        assert sum((user.resources.get(RATIO, whole) for user in users), Quantity.of(0)) <= whole
        assert not users or minor in MINORS["gpu"]
