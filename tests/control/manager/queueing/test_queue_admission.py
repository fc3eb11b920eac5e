"""Which jobs a queue admits, in which order, and which quotas they may use (spec 05 §14)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.manager.queueing.admit import QueueOrder, WaitingJob, admit, virtual_pod
from control.manager.queueing.permitted import NotPermitted, permitted
from control.quota.forest import ForestRules, QuotaForest
from control.quota.info import QuotaInfo
from koordlet.api import names
from koordlet.api.encoding.quantity import Quantity

FIFO = QueueOrder("q")
PRIORITY = QueueOrder("q", by_priority=True)
OVERTAKING = QueueOrder("q", by_priority=True, blocking=False)


def forest(total: int = 100, **quotas: tuple[int, int]) -> QuotaForest:
    """name -> (min, max) in cores, all below the root; `total` cores in the cluster."""
    forest = QuotaForest(ForestRules(), lambda: cluster)
    cluster = {"cpu": total * 1000}
    for name, (low, high) in quotas.items():
        least, most = {"cpu": Quantity(str(low))}, {"cpu": Quantity(str(high))}
        forest.put(QuotaInfo(name, min=least, max=most, weight=most))
    return forest


def job(name: str, cores: int, *quotas: str, priority: int = 0, created: float = 0.0, problem: str = "") -> WaitingJob:
    return WaitingJob(name, f"ns/{name}", created, priority, {"cpu": cores * 1000}, quotas or ("a",), problem)


def decided(quotas: QuotaForest, order: QueueOrder, *jobs: WaitingJob) -> dict[str, tuple[str, int]]:
    """name -> (quota, position). All jobs count as requests first, as in the controller."""
    for each in jobs:
        if each.quotas and not each.problem:
            quotas.set_pod(virtual_pod(each.uid, each.key, each.quotas[0], each.request))
    return {verdict.job.uid: (verdict.quota, verdict.position) for verdict in admit(quotas, order, jobs)}


def test_fifo_is_the_order_of_creation_and_blocks() -> None:
    jobs = (job("late", 1, created=3), job("big", 9, created=2), job("first", 4, created=1, priority=-5))
    assert decided(forest(a=(10, 10)), FIFO, *jobs) == {"first": ("a", 0), "big": ("", 1), "late": ("", 2)}


def test_priority_comes_before_creation() -> None:
    jobs = (job("old", 6, created=1), job("urgent", 6, created=2, priority=10))
    assert decided(forest(a=(10, 10)), PRIORITY, *jobs) == {"urgent": ("a", 0), "old": ("", 1)}


def test_a_smaller_job_overtakes_only_in_a_queue_that_does_not_block() -> None:
    jobs = (job("running", 6, priority=3), job("big", 9, priority=2), job("small", 2, priority=1))
    assert decided(forest(a=(10, 10)), PRIORITY, *jobs)["small"] == ("", 2)
    assert decided(forest(a=(10, 10)), OVERTAKING, *jobs)["small"] == ("a", 0)


def test_a_job_that_no_quota_can_ever_hold_does_not_block() -> None:
    jobs = (job("monster", 11, created=1), job("small", 2, created=2))
    assert decided(forest(a=(10, 10)), FIFO, *jobs) == {"monster": ("", 1), "small": ("a", 0)}


@pytest.mark.parametrize("cores", [21, 60, 101], ids=["parent", "quota", "cluster"])
def test_a_job_that_the_parents_or_the_cluster_can_never_hold_does_not_block(cores: int) -> None:
    quotas = forest(top=(0, 20), wide=(0, 1000))
    fifty, zero = {"cpu": Quantity("50")}, {"cpu": Quantity("0")}
    quotas.put(QuotaInfo("a", parent="top", min=zero, max=fifty, weight=fifty))
    name = "wide" if cores > 100 else "a"
    jobs = (job("monster", cores, name, created=1), job("small", 2, name, created=2))
    assert decided(quotas, FIFO, *jobs) == {"monster": ("", 1), "small": (name, 0)}


def test_a_job_that_may_use_no_quota_does_not_block() -> None:
    jobs = (job("strange", 1, created=1, problem="no"), job("small", 2, created=2))
    assert decided(forest(a=(10, 10)), FIFO, *jobs) == {"strange": ("", 1), "small": ("a", 0)}


def test_the_next_quota_of_the_queue_is_tried() -> None:
    jobs = (
        job("one", 8, "a", "b", created=1),
        job("two", 8, "a", "b", created=2),
        job("three", 8, "a", "b", created=3),
    )
    assert decided(forest(a=(10, 10), b=(10, 10)), FIFO, *jobs) == {
        "one": ("a", 0), "two": ("b", 0), "three": ("", 1),
    }  # fmt: skip


def test_a_missing_quota_is_named() -> None:
    (verdict,) = admit(forest(a=(10, 10)), FIFO, [job("lost", 1, "nowhere")])
    assert (verdict.quota, verdict.message) == ("", "ElasticQuota nowhere does not exist")


def test_waiting_jobs_of_another_quota_keep_their_share() -> None:
    """Quota a may borrow what no job requests, not what a waiting job of b is guaranteed."""
    alone = forest(total=10, a=(5, 10), b=(5, 10))
    assert decided(alone, FIFO, job("greedy", 8, "a"))["greedy"] == ("a", 0)
    shared = forest(total=10, a=(5, 10), b=(5, 10))
    other = job("other", 5, "b")
    shared.set_pod(virtual_pod(other.uid, other.key, "b", other.request))
    assert decided(shared, FIFO, job("greedy", 8, "a"))["greedy"] == ("", 1)
    assert decided(shared, FIFO, other)["other"] == ("b", 0)


def test_an_ancestor_without_room_refuses() -> None:
    quotas = forest(total=10, parent=(2, 4))
    ten = {"cpu": Quantity("10")}
    quotas.put(QuotaInfo("a", parent="parent", min={"cpu": Quantity("1")}, max=ten, weight=ten))
    assert decided(quotas, FIFO, job("five", 5))["five"] == ("", 1)
    assert decided(quotas, FIFO, job("four", 4))["four"] == ("a", 0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(-2, 2), st.sampled_from(("a", "b"))), max_size=12),
    st.sampled_from((FIFO, PRIORITY, OVERTAKING)),
)
def test_what_is_admitted_never_exceeds_quota_or_cluster(
    requests: list[tuple[int, int, str]], order: QueueOrder
) -> None:
    quotas = forest(total=14, a=(3, 9), b=(4, 12))
    jobs = [
        job(f"j{at}", cores, quota, priority=priority, created=at)
        for at, (cores, priority, quota) in enumerate(requests)
    ]  # fmt: skip
    verdicts = decided(quotas, order, *jobs)
    admitted = {each.uid: each for each in jobs if verdicts[each.uid][0]}
    by_quota = {name: sum(each.request["cpu"] for each in admitted.values() if each.quotas[0] == name) for name in "ab"}
    assert by_quota["a"] <= 9000 and by_quota["b"] <= 12000 and sum(by_quota.values()) <= 14000
    positions = [position for quota, position in verdicts.values() if not quota]
    assert sorted(positions) == list(range(1, len(positions) + 1))


PERMITTED = {
    "the quota of the queue's name": ("q", None, {}, ("q",)),
    "a Queue without annotation": ("q", {}, {}, ("q",)),
    "those of the Queue": ("q", {names.ANNOTATION_AVAILABLE_QUOTA: "b, a,,b"}, {}, ("b", "a")),
    "those that the namespace allows": (
        "q", {names.ANNOTATION_AVAILABLE_QUOTA: "a,b"}, {names.ANNOTATION_AVAILABLE_QUOTA: "b,c"}, ("b",),
    ),
    "those of the queue in the namespace": (
        "q", {names.ANNOTATION_AVAILABLE_QUOTA: "a,b"}, {names.ANNOTATION_AVAILABLE_QUEUE: '{"q":["b"]}'}, ("b",),
    ),
    "all of the queue": (
        "q", {names.ANNOTATION_AVAILABLE_QUOTA: "a,b"}, {names.ANNOTATION_AVAILABLE_QUEUE: '{"q":[]}'}, ("a", "b"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queue", "own", "namespace", "expected"), PERMITTED.values(), ids=PERMITTED)
def test_permitted(
    queue: str, own: dict[str, str] | None, namespace: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert permitted(queue, own, namespace) == expected


REFUSED = {
    "another queue": {names.ANNOTATION_AVAILABLE_QUEUE: json.dumps({"other": ["q"]})},
    "a quota that the queue does not have": {names.ANNOTATION_AVAILABLE_QUEUE: json.dumps({"q": ["z"]})},
    "no common quota": {names.ANNOTATION_AVAILABLE_QUOTA: "z"},
    "not JSON": {names.ANNOTATION_AVAILABLE_QUEUE: "{"},
    "not lists": {names.ANNOTATION_AVAILABLE_QUEUE: '{"q": 1}'},
    "too long": {names.ANNOTATION_AVAILABLE_QUEUE: json.dumps({"q": ["z" * 5000]})},
}


@pytest.mark.parametrize("namespace", REFUSED.values(), ids=REFUSED)
def test_not_permitted(namespace: dict[str, str]) -> None:
    with pytest.raises(NotPermitted):
        permitted("q", None, namespace)


@pytest.mark.parametrize("quota", ["koordinator-system-quota", "koordinator-root-quota"])
def test_a_job_names_no_built_in_quota(quota: str) -> None:
    """No limit of a tenant covers them; a Queue of the administrator may list one."""
    with pytest.raises(NotPermitted, match=f"{quota} is not for jobs"):
        permitted(quota, None, {})
    with pytest.raises(NotPermitted, match=f"{quota} is not for jobs"):
        permitted(quota, {}, {})
    assert permitted(quota, {names.ANNOTATION_AVAILABLE_QUOTA: quota}, {}) == (quota,)
