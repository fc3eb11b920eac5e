"""The volume plugins against plain ones that look at one node and one claim at a time."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.plugins.volumes import NodeVolumeLimits, VolumeBinding, VolumeRestrictions, VolumeZone
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain import volumes as plain
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import Said, filtered
from tests.control.scheduler.plugins.storages import OLD_ZONE, ZONE, StorageObjects, claims, pod_volumes, storages

PLAIN = {
    VolumeRestrictions: (plain.restrictions_first, plain.restrictions),
    NodeVolumeLimits: (None, plain.limits),
    VolumeBinding: (plain.binding_first, plain.binding),
    VolumeZone: (plain.zone_first, plain.zone),
}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, Pod]:
    """A cluster with pods on it, and one more that wants a place; claims made for pods may be theirs or not."""
    number = draw(st.integers(1, 4))
    nodes = []
    for at in range(number):
        labels = {}
        for key in (ZONE, OLD_ZONE):
            if draw(st.integers(0, 2)):
                labels[key] = draw(st.sampled_from(("z1", "z2")))
        nodes.append(node(f"n{at}", labels=labels))
    storage = draw(storages(number))
    placed = [
        pod(f"p{at}", spec={"volumes": draw(pod_volumes())}, on=f"n{draw(st.integers(0, number - 1))}")
        for at in range(draw(st.integers(0, 4)))
    ]
    incoming = pod("new", spec={"volumes": draw(pod_volumes())})
    claim_names = [f"new-{volume.name}" for volume in incoming.spec.volumes if volume.ephemeral is not None]
    owners = st.sampled_from((incoming.metadata.uid, incoming.metadata.uid, "", "another"))
    storage.claims = [
        *storage.claims, *(draw(claims(name, owner=draw(owners))) for name in claim_names if draw(st.integers(0, 4))),
    ]  # fmt: skip
    unbound = [claim.metadata.key for claim in storage.claims if not claim.spec.volume_name]
    free = [volume.metadata.name for volume in storage.volumes if volume.spec.claim_ref is None]
    if unbound and free and draw(st.booleans()):  # type: ignore[arg-type]
        storage.promised = {draw(st.sampled_from(free)): draw(st.sampled_from(unbound))}
    elif unbound and draw(st.integers(0, 3)) == 0:
        storage.being_made = {draw(st.sampled_from(unbound)): draw(st.sampled_from(("n0", "n1")))}
    return World(nodes, placed, storage=storage), incoming


def expected(plugin: type[Plugin], incoming: Pod, world: World) -> dict[str, Said]:
    first, there = PLAIN[plugin]
    at_once = first(incoming, world) if first is not None else None
    return {node.metadata.name: at_once or there(incoming, node, world) for node in world.nodes}


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(worlds())
def test_volumes_follow_the_plain_rules(given_world: tuple[World, Pod]) -> None:
    world, incoming = given_world
    cluster = Cluster(*world.nodes)
    cluster.use(objects=StorageObjects(world.storage))
    cluster.put(*world.pods)
    for kind in PLAIN:
        plugin = kind(None, cluster.handle)
        if isinstance(plugin, VolumeBinding):
            assumed = plugin._storage.assumed
            assumed.hold([(claim, volume) for volume, claim in world.storage.promised.items()], (), "")
            for claim, where in world.storage.being_made.items():
                assumed.hold((), (claim,), where)
        assert filtered(plugin, cluster, incoming) == expected(kind, incoming, world), kind.name
        if isinstance(plugin, VolumeBinding):
            _reserves_as_planned(plugin, cluster, incoming, world)


def _reserves_as_planned(plugin: VolumeBinding, cluster: Cluster, incoming: Pod, world: World) -> None:
    """What is noted for the node that is chosen is what the plain rules would take there."""
    assumed, info = plugin._storage.assumed, cluster.info(incoming)
    before = msgspec.json.encode((assumed.volumes, assumed.provisioned))
    for candidate in world.nodes:
        state = CycleState()
        if not plugin.pre_filter(state, info).status.ok:
            return
        why_not, matched, to_make = plain.placed(incoming, candidate, world)
        status = plugin.reserve(state, info, cluster.table.rows[candidate.metadata.name])
        assert status.message == why_not
        reserved = {claim: volume for volume, claim in assumed.volumes.items() if claim in matched}
        assert reserved == matched
        assert all(assumed.provisioned[claim] == candidate.metadata.name for claim in to_make)
        plugin.unreserve(state, info, cluster.table.rows[candidate.metadata.name])
        assert msgspec.json.encode((assumed.volumes, assumed.provisioned)) == before
