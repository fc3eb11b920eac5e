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


def bound(one: PodInfo, minor: int | None, on: str = "a") -> PodInfo:
    annotations = {} if minor is None else {ANNOTATION_GPU_MINORS: str(minor)}
    meta = msgspec.structs.replace(one.pod.metadata, annotations=annotations)
    spec = msgspec.structs.replace(one.pod.spec, node_name=on)
    return PodInfo(msgspec.structs.replace(one.pod, metadata=meta, spec=spec), one.shape)


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
    one = cluster.info(pod())
    cache.assume(one, "a")
    minors.allocations.assign(one, 1)
    cache.remove_pod(one.uid)
    minors.allocations.release(one)  # the binding fails afterwards
    assert minors.taken == {}
    assert minors.allocations._assigned == {}


@given(st.lists(st.tuples(st.sampled_from(["assume", "confirm", "fail", "delete", "trial"]), st.integers(0, 3))))
def test_any_history_ends_like_a_restart(steps: list[tuple[str, int]]) -> None:
    cluster = Cluster(node("a"))
    minors, cache = Minors(cluster), Cache(cluster.table, cluster.shapes)
    pods = [cluster.info(pod(f"p{number}")) for number in range(4)]
    for step, number in steps:
        one = pods[number]
        counted, assumed = one.uid in cache.pods, one.uid in cache.assumed
        if step == "assume" and not counted:
            cache.assume(one, "a")
            minors.allocations.assign(one, number)
        elif step == "confirm" and assumed:
            cache.set_pod(bound(one, number).pod)
        elif step == "fail" and assumed:
            minors.allocations.release(one)
            cache.forget(one)
        elif step == "delete" and counted and not assumed:
            cache.remove_pod(one.uid)
            pods[number] = cluster.info(pod(f"p{number}"))
        elif step == "trial" and counted:
            before = dict(minors.taken)
            with cluster.table.what_if() as trial:
                trial.remove(one)
                assert len(minors.taken) == len(before) - 1
                trial.add(one, 0)
                assert minors.taken == before
        assert set(minors.taken.values()) == set(cache.pods)
        assert set(minors.allocations._assigned) == cache.assumed
    again = Cluster(node("a"))
    restarted = Minors(again)
    later = Cache(again.table, again.shapes)
    for info in cache.pods.values():
        later.set_pod(bound(info, pods.index(info)).pod)
    assert restarted.taken == minors.taken
