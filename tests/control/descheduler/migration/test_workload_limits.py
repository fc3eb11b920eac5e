"""Limits that follow from the number of replicas, and the limits in time (spec 07 §11.4, §11.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.descheduler.migration.decide.args import DEFAULT_LIMIT, NAMESPACE, WORKLOAD, ObjectLimit
from control.descheduler.migration.decide.objectlimiter import ObjectLimiter, RecordedBucket
from control.descheduler.migration.decide.workloads import get_max
from koordlet.api.encoding.wire import Duration
from tests.control.descheduler.migration.build import NOW, pod


@pytest.mark.parametrize(
    ("replicas", "value", "result"),
    [
        (6, "80%", 4),
        (6, "150%", 6),
        (6, 5, 5),
        (6, 7, 6),
        (3, None, 1),
        (6, None, 2),
        (50, "0%", 1),
        (6, 0, 1),
        (100, None, 10),
        (11, None, 1),
        (4, None, 2),
        (10, None, 2),
        (0, None, 0),
        (0, 5, 0),
    ],
)
def test_get_max(replicas: int, value: int | str | None, result: int) -> None:
    assert get_max(replicas, value) == result


@given(st.integers(0, 10_000), st.none() | st.integers(0, 10_000) | st.integers(0, 300).map(lambda each: f"{each}%"))
def test_get_max_is_between_one_and_all(replicas: int, value: int | str | None) -> None:
    assert min(replicas, 1) <= get_max(replicas, value) <= replicas


@pytest.mark.parametrize(("replicas", "seconds"), [(100, 30.0), (3, 300.0)])
def test_the_default_limit_spreads_evictions_over_five_minutes(replicas: int, seconds: float) -> None:
    limiter, member = ObjectLimiter({WORKLOAD: DEFAULT_LIMIT}), pod("a")
    assert not limiter.exceeded(member, 0.0)
    limiter.track(member, replicas, 0.0)
    assert limiter.exceeded(member, seconds - 0.01)
    assert not limiter.exceeded(member, seconds)


def test_a_burst_allows_several_at_once() -> None:
    once = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("1s"), max_migrating=10)})
    once.track(pod("a"), 100, 0.0)
    assert once.exceeded(pod("b"), 0.099)
    assert not once.exceeded(pod("b"), 0.1)
    twice = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("1s"), max_migrating=10, burst=2)})
    twice.track(pod("a"), 100, 0.0)
    assert not twice.exceeded(pod("b"), 0.0)
    twice.track(pod("b"), 100, 0.0)
    assert twice.exceeded(pod("c"), 0.05)


def test_namespaces_need_a_number_and_do_not_stop_other_kinds() -> None:
    limits = {
        NAMESPACE: ObjectLimit(duration=Duration("1m"), max_migrating="50%"),
        WORKLOAD: ObjectLimit(duration=Duration("1m"), max_migrating=1),
    }
    limiter = ObjectLimiter(limits)
    limiter.track(pod("a"), 10, 0.0)
    assert limiter.exceeded(pod("b"), 1.0)
    assert not limiter.exceeded(pod("c", by="other"), 1.0)
    limiter = ObjectLimiter({NAMESPACE: ObjectLimit(duration=Duration("1m"), max_migrating=1)})
    limiter.track(pod("a"), 10, 0.0)
    assert limiter.exceeded(pod("c", by="other"), 1.0)
    assert not limiter.exceeded(pod("c", by="other", namespace="else"), 1.0)


def test_unused_objects_are_forgotten() -> None:
    limiter = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("10s"), max_migrating=1)})
    for number in range(100):
        limiter.track(pod(f"p{number}", by=f"w{number}"), 10, float(number))
    assert len(limiter) <= 16


@given(
    st.lists(st.tuples(st.floats(0.0, 120.0), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_no_window_has_more_evictions_than_the_limit_allows(
    steps: list[tuple[float, bool]], most: int, burst: int
) -> None:
    """Also if another process continues before a step; its monotonic clock starts at 0."""
    duration = 60.0
    limits = {WORKLOAD: ObjectLimit(duration=Duration("60s"), max_migrating=most, burst=burst)}
    limiter, booted = ObjectLimiter(limits), 0.0
    done: list[float] = []
    for now, restarts in sorted(steps):
        if restarts:
            records = limiter.recorded(now - booted, NOW + now, 10)
            limiter, booted = ObjectLimiter(limits), now
            limiter.restore(records, 0.0, NOW + now)
        if not limiter.exceeded(pod("a"), now - booted):
            limiter.track(pod("a"), 1000, now - booted)
            done.append(now)
    for start in done:
        assert sum(start <= each < start + duration for each in done) <= most + burst


def test_a_refused_eviction_costs_nothing() -> None:
    limiter = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("1m"), max_migrating=1)})
    limiter.track(pod("a"), 10, 0.0)
    limiter.restore_token(pod("a"), 1.0)
    assert not limiter.exceeded(pod("b"), 1.0)
    assert limiter.recorded(1.0, NOW, 10) == {}


def test_a_later_leader_takes_the_lower_of_two_buckets_and_ignores_what_it_does_not_limit() -> None:
    limiter = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("1m"), max_migrating=1, burst=2)})
    limiter.track(pod("a"), 10, 0.0)  # one of two tokens is left
    own = next(iter(limiter.recorded(0.0, NOW, 10)))
    records = {
        own: RecordedBucket(0.0, 1 / 60, NOW + 3600),  # recorded by a process whose clock is ahead
        "namespace/default": RecordedBucket(0.0, 1 / 60, NOW),
        "workload/": RecordedBucket(0.0, 1 / 60, NOW),
        "workload/uid-never": RecordedBucket(0.0, 0.0, NOW),
    }
    limiter.restore(records, 0.0, NOW)
    assert len(limiter) == 1
    assert limiter.exceeded(pod("a"), 59.9)
    assert not limiter.exceeded(pod("a"), 60.1)


def test_the_last_used_buckets_are_recorded() -> None:
    limiter = ObjectLimiter({WORKLOAD: ObjectLimit(duration=Duration("10m"), max_migrating=1)})
    for number in range(20):
        limiter.track(pod("p", by=f"w{number}"), 10, float(number))
    records = limiter.recorded(20.0, NOW, 3)
    assert [key.removeprefix("workload/") for key in records] == ["uid-w19", "uid-w18", "uid-w17"]
