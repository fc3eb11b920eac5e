"""DynamicResources in cycles: what it counts as taken, and results by node that are kept between cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.dynamicresources import DynamicResources
from control.scheduler.plugins.dynamicresources import plugin as plugin_module
from control.scheduler.plugins.dynamicresources.allocator import SearchBudget
from koordlet.api.core.claims import ResourceClaim
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.dynamicresources.objects import (
    DRIVER,
    MODEL,
    Objects,
    claim,
    device,
    device_class,
    pod_with,
    request,
    slice_of,
)

NODES = ("n1", "n2", "n3")


def cluster_of(*objects: Any) -> tuple[Cluster, Objects, DynamicResources]:
    cluster, known = Cluster(*(node(name) for name in NODES)), Objects(*objects)
    cluster.use(objects=known)
    return cluster, known, DynamicResources(None, cluster.handle)


def fits(cluster: Cluster, plugin: DynamicResources, *claims: str, uid: str = "p") -> list[str]:
    """The nodes that pass; the reason instead if none was evaluated."""
    state, info = CycleState(), cluster.info(pod_with(*claims, name=uid))
    result = plugin.pre_filter(state, info)
    if not result.status.ok:
        return [result.status.message]
    reasons = plugin.filter(state, info, slice(0, len(NODES)))
    return [name for name, reason in zip(NODES, reasons.tolist(), strict=True) if not reason]


def allocated(name: str, at: str, gpu: str, *users: str) -> ResourceClaim:
    field = {"key": "metadata.name", "operator": "In", "values": [at]}
    results = [{"request": "r", "driver": DRIVER, "pool": at, "device": gpu}]
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    reserved = [{"resource": "pods", "name": user, "uid": user} for user in users]
    status = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}, "reservedFor": reserved}
    return claim(name, status=status)


def test_only_nodes_with_free_devices_pass() -> None:
    cluster, objects, plugin = cluster_of(
        device_class(),
        slice_of("n1", device("g-0")),
        slice_of("n3", device("g-0"), device("g-1", model="H100")),
        claim("a"),
        claim("h", request("r", f'{MODEL} == "H100"')),
        claim("both", request(count=2)),
    )
    assert fits(cluster, plugin, "a") == ["n1", "n3"]
    assert fits(cluster, plugin, "h") == ["n3"]
    assert fits(cluster, plugin, "both") == ["n3"]
    assert fits(cluster, plugin, "a", "h") == ["n3"]
    objects.set(allocated("other", "n3", "g-1"))
    assert fits(cluster, plugin, "both") == []
    assert fits(cluster, plugin, "a") == ["n1", "n3"]
    objects.stores[ResourceClaim].drop("default/other")
    assert fits(cluster, plugin, "both") == ["n3"]


def test_the_selectors_of_a_pod_are_bounded_together() -> None:
    def long(name: str, count: int) -> ResourceClaim:
        texts = [f'{MODEL} == "A100" || "{name}{number}" == "{"x" * 1000}"' for number in range(count)]
        return claim(name, request("r", *texts), request("again", *texts))

    cluster, _, plugin = cluster_of(
        device_class(), slice_of("n1", *(device(f"g-{at}") for at in range(4))), long("a", 10), long("b", 10)
    )
    assert fits(cluster, plugin, "a") == ["n1"], "equal expressions count once"
    assert fits(cluster, plugin, "a", "b") == ["CEL selectors of more than 16384 characters are not evaluated"]


def test_an_allocated_claim_keeps_its_pods_on_its_nodes() -> None:
    cluster, _, plugin = cluster_of(device_class(), slice_of("n1", device("g-0")), allocated("a", "n2", "gone"))
    assert fits(cluster, plugin, "a") == ["n2"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", 'resourceclaim "none" not found'),
        ("gone", 'resourceclaim "gone" is being deleted'),
        ("class", 'resourceclaim "class": request r: device class none does not exist'),
        ("full", 'resourceclaim "full" is used by 256 pods, the limit'),
    ],
)
def test_claims_that_have_to_wait(name: str, reason: str) -> None:
    going = claim("gone")
    going.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"  # type: ignore[assignment]
    full = allocated("full", "n1", "g-0", *(f"user{number}" for number in range(256)))
    cluster, _, plugin = cluster_of(device_class(), going, claim("class", request(cls="none")), full)
    assert fits(cluster, plugin, name) == [reason]


def test_a_claim_that_is_being_allocated_waits_and_its_devices_are_taken_until_it_is_given_up() -> None:
    cluster, objects, plugin = cluster_of(device_class(), slice_of("n1", device("g-0")), claim("a"), claim("b"))
    state, info = CycleState(), cluster.info(pod_with("a"))
    assert plugin.pre_filter(state, info).status.ok
    assert plugin.reserve(state, info, cluster.table.rows["n1"]).ok
    assert fits(cluster, plugin, "a") == ['resourceclaim "a" is in the process of being allocated']
    assert fits(cluster, plugin, "b") == []
    plugin.unreserve(state, info, cluster.table.rows["n1"])
    assert fits(cluster, plugin, "b") == ["n1"]
    assert plugin.reserve(state, info, cluster.table.rows["n1"]).ok is False or fits(cluster, plugin, "b") == []
    objects.set(allocated("a", "n1", "g-0", "p"))
    assert fits(cluster, plugin, "b") == []
    objects.stores[ResourceClaim].drop("default/a")
    assert fits(cluster, plugin, "b") == ["n1"], "released once, although it was assumed and confirmed"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from(NODES), st.integers(0, 1)),
        st.tuples(st.just("free"), st.sampled_from(NODES), st.integers(0, 1)),
        st.tuples(st.just("slice"), st.sampled_from(NODES), st.integers(0, 3)),
        st.tuples(st.just("class"), st.just(""), st.integers(0, 1)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_kept_results_are_those_of_a_new_scheduler(steps: list[tuple[str, str, int]]) -> None:
    wishes = (claim("a"), claim("two", request(count=2)), claim("h", request("r", f'{MODEL} == "H100"')))
    cluster, objects, plugin = cluster_of(device_class(), *wishes)
    objects.informer(ResourceClaim)
    for number, (action, at, what) in enumerate(steps):
        if action == "take":
            objects.set(allocated(f"{at}-{what}", at, f"g-{what}"))
        elif action == "free" and objects.stores[ResourceClaim].get(f"default/{at}-{what}"):
            objects.stores[ResourceClaim].drop(f"default/{at}-{what}")
        elif action == "slice":
            gpus = [device(f"g-{each}", ("A100", "H100")[each % 2]) for each in range(what)]
            objects.set(slice_of(at, *gpus, name=at, version=(number, 1)))
        elif action == "class":
            objects.set(device_class("gpu", *(["false"] if what else [])))
        everything = [each for store in objects.stores.values() for each in store.list()]
        fresh_cluster, _, fresh = cluster_of(*everything)
        for name in ("a", "two", "h"):
            assert fits(cluster, plugin, name) == fits(fresh_cluster, fresh, name)


def test_what_one_profile_allocates_is_taken_for_the_others() -> None:
    cluster, objects, plugin = cluster_of(device_class(), slice_of("n1", device("g-0")), claim("a"), claim("b"))
    other = DynamicResources(None, replace(cluster.handle, profile="other"))
    state, info = CycleState(), cluster.info(pod_with("a"))
    assert plugin.pre_filter(state, info).status.ok
    assert plugin.reserve(state, info, cluster.table.rows["n1"]).ok
    assert fits(cluster, other, "b") == []
    assert fits(cluster, other, "a") == ['resourceclaim "a" is in the process of being allocated']
    objects.set(allocated("a", "n1", "g-0", "p"))
    assert fits(cluster, other, "b") == []
    objects.stores[ResourceClaim].drop("default/a")
    assert fits(cluster, other, "b") == ["n1"]


def test_a_cycle_that_runs_out_of_steps_goes_on_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of n1 or n2 tries 209 devices in vain."""
    monkeypatch.setattr(plugin_module, "SearchBudget", lambda: SearchBudget(300))
    gpus = [device(f"g-{number}") for number in range(9)]
    offered = {"n1": gpus, "n2": gpus, "n3": [*gpus, device("h-0", model="H100")]}
    cluster, _, plugin = cluster_of(
        device_class(),
        *(slice_of(name, *devices) for name, devices in offered.items()),
        claim("a", request("r", count=4), request("s", f'{MODEL} == "H100"')),
    )
    assert fits(cluster, plugin, "a") == []
    assert fits(cluster, plugin, "a") == ["n3"]


def test_a_pod_with_claims_that_lost_its_node_wakes_pods_with_claims() -> None:
    """Its claims may never have been written, so no event of a claim follows."""
    cluster, _, plugin = cluster_of()
    waiting, lost, plain = (cluster.info(pod_with(*claims)) for claims in (("a",), ("b",), ()))
    (interest,) = (interest for interest in plugin.interests() if interest.resource == "AssignedPod")
    assert interest.actions == {"Delete"}
    assert interest.hint is not None
    assert interest.hint(waiting, lost, None)
    assert not interest.hint(waiting, plain, None)


def test_an_extended_resource_of_a_class_that_no_node_has_is_not_supported() -> None:
    cluster, objects, plugin = cluster_of(device_class(extendedResourceName="example.com/gpu"))
    amount: dict[str, Any] = {"example.com__gpu": "1"}
    incoming = cluster.info(pod("p", **amount))
    text = 'extended resource "example.com/gpu" of DeviceClass "gpu" is not supported: use a ResourceClaim'

    def status() -> str:
        return plugin.pre_filter(CycleState(), incoming).status.message

    assert plugin.pre_filter(CycleState(), cluster.info(pod("plain"))).status.skipped
    assert status() == text
    cluster.table.set_node(node("n2", **amount))  # a device plugin has it
    assert status() == ""
    cluster.table.set_node(node("n2"))
    assert status() == text
    objects.set(device_class())
    assert status() == ""
