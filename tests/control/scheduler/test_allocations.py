"""Allocations of pods are applied while the pods are counted, in trials too, and survive a restart in annotations."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.state.allocations import Allocations
from control.scheduler.state.cache import Cache
from control.scheduler.state.pods import PodInfo
from koordlet.api.names import ANNOTATION_GPU_MINORS
from tests.control.scheduler.build import Cluster, node, pod


class Minors:
    """Which minors of each row are taken, by whom."""

    def __init__(self, cluster: Cluster) -> None:
        self.taken: dict[tuple[int, int], str] = {}
        self.allocations = Allocations(read, self.apply)
        cluster.table.listen(self.allocations)

    def apply(self, row: int, pod: PodInfo, minor: int, sign: int) -> None:
        if sign > 0:
            assert (row, minor) not in self.taken
            self.taken[row, minor] = pod.uid
        else:
            assert self.taken.pop((row, minor)) == pod.uid


def read(pod: PodInfo) -> int | None:
    text = pod.pod.metadata.annotations.get(ANNOTATION_GPU_MINORS)
    return int(text) if text is not None else None


def bound(pod: PodInfo, minor: int | None, on: str = "a") -> PodInfo:
    annotations = {} if minor is None else {ANNOTATION_GPU_MINORS: str(minor)}
    meta = msgspec.structs.replace(pod.pod.metadata, annotations=annotations)
    spec = msgspec.structs.replace(pod.pod.spec, node_name=on)
    return PodInfo(msgspec.structs.replace(pod.pod, metadata=meta, spec=spec), pod.shape)


def test_the_annotation_of_a_pending_pod_gives_it_nothing() -> None:
    cluster = Cluster(node("a"))
    minors, cache = Minors(cluster), Cache(cluster.table, cluster.shapes)
    forged = cluster.info(pod(annotations={ANNOTATION_GPU_MINORS: "5"}))
    cache.assume(forged, "a")
    assert minors.taken == {}
    minors.allocations.assign(forged, 1)
    assert minors.taken == {(0, 1): forged.uid}
    minors.allocations.release(forged)
    cache.forget(forged)
    assert minors.taken == {}


def test_a_deleted_assumed_pod_leaves_nothing() -> None:
    cluster = Cluster(node("a"))
    minors, cache = Minors(cluster), Cache(cluster.table, cluster.shapes)
    info = cluster.info(pod())
    cache.assume(info, "a")
    minors.allocations.assign(info, 1)
    cache.remove_pod(info.uid)
    minors.allocations.release(info)  # the binding fails afterwards
    assert minors.taken == {}
    assert minors.allocations._assigned == {}


def test_a_confirmed_pod_keeps_its_allocation_when_the_binding_fails_afterwards() -> None:
    """The answer to the binding was lost, or another scheduler bound the pod with the same annotation."""
    cluster = Cluster(node("a"))
    minors, cache = Minors(cluster), Cache(cluster.table, cluster.shapes)
    info = cluster.info(pod(annotations={ANNOTATION_GPU_MINORS: "1"}))
    cache.assume(info, "a")
    minors.allocations.assign(info, 1)
    cache.set_pod(bound(info, 1).pod)
    minors.allocations.unreserve(info)
    assert minors.taken == {(0, 1): info.uid}
    cache.remove_pod(info.uid)
    assert minors.taken == {}
    assert minors.allocations._assigned == {}


@given(st.lists(st.tuples(st.sampled_from(["assume", "confirm", "fail", "delete", "trial"]), st.integers(0, 3))))
def test_any_history_ends_like_a_restart(steps: list[tuple[str, int]]) -> None:
    cluster = Cluster(node("a"))
    minors, cache = Minors(cluster), Cache(cluster.table, cluster.shapes)
    pods = [cluster.info(pod(f"p{number}")) for number in range(4)]
    for step, number in steps:
        member = pods[number]
        counted, assumed = member.uid in cache.pods, member.uid in cache.assumed
        if step == "assume" and not counted:
            cache.assume(member, "a")
            minors.allocations.assign(member, number)
        elif step == "confirm" and assumed:
            cache.set_pod(bound(member, number).pod)
        elif step == "fail" and assumed:
            minors.allocations.release(member)
            cache.forget(member)
        elif step == "delete" and counted and not assumed:
            cache.remove_pod(member.uid)
            pods[number] = cluster.info(pod(f"p{number}"))
        elif step == "trial" and counted:
            before = dict(minors.taken)
            with cluster.table.what_if() as trial:
                trial.remove(member)
                assert len(minors.taken) == len(before) - 1
                trial.add(member, 0)
                assert minors.taken == before
        assert set(minors.taken.values()) == set(cache.pods)
        assert set(minors.allocations._assigned) == cache.assumed
    again = Cluster(node("a"))
    restarted = Minors(again)
    later = Cache(again.table, again.shapes)
    for info in cache.pods.values():
        later.set_pod(bound(info, pods.index(info)).pod)
    assert restarted.taken == minors.taken
