"""Block I/O and network stalls by subject, and the window they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.stalls import blockio, netstall
from koordlet.metricsadvisor.stalls.window import JITTER_RATIO, SnapshotWindow
from koordlet.probes.blockio.files import counts_only
from koordlet.probes.blockio.snapshot import FLUSH
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.netstall.files import retransmits_only
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.cgroup.blockio import DiskUse

ONE, TWO = (Subject(SubjectKind.CONTAINER, f"c://{name}", f"kubepods/{name}", name) for name in ("one", "two"))
OWNERS = {1: owner_of(ONE), 2: owner_of(TWO), 3: owner_of(ONE)}


def owner(cgroup_id: int) -> Owner:
    return OWNERS.get(cgroup_id) or Owner("gone", str(cgroup_id))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_all_groups_and_disks_of_a_container_are_one_subject() -> None:
    rows = {(1, 5): 100, (1, 6): 20, (2, 5): 7, (3, 5): 3, (9, 5): 1000, (-3, 5): 50}
    window = counts_only({row: DiskUse([size, 2 * size, 0], [1, 2, 0]) for row, size in rows.items()})
    window.ops[:, FLUSH] = 1
    figures = blockio.by_subject(window, 10.0, owner)
    assert set(figures) == {"c://one", "c://two"}
    container = figures["c://one"]
    assert (container.read_bytes, container.write_bytes) == pytest.approx((12.3, 24.6))
    assert container.queue_p99 is None, "the files tell no times"


def test_waiting_is_split_into_own_limit_neighbours_and_self() -> None:
    second = 10**9
    plain = counts_only({(1, 5): DiskUse([1, 0, 0], [1, 0, 0]), (2, 5): DiskUse([1, 0, 0], [1, 0, 0])})
    hist = np.zeros((2, 2, BUCKETS), dtype=np.int64)
    hist[0, 1, 10] = 5
    window = replace(
        plain,
        source="bpf",
        queue_hist=hist,
        ahead_ns=ints(4 * second, 0),
        throttled_ns=ints(2 * second, 0),
        throttled_count=ints(3, 0),
        culprits=CulpritMatrix(
            victim=ints(1, 1, 1),
            culprit=ints(SPECIAL_KEYS["idle"], 1, 2),
            ns=ints(second // 2, second, 5 * second // 2),
            count=ints(1, 2, 3),
        ),
    )
    container = blockio.by_subject(window, 10.0, owner)["c://one"]
    assert container.wait == pytest.approx(0.4)
    assert container.throttled == pytest.approx(0.2)
    assert [culprit.owner.label for culprit in container.culprits] == ["two", "one", "idle"]
    assert [culprit.seconds for culprit in container.culprits] == pytest.approx([0.25, 0.1, 0.05]), "per second"
    assert sum(culprit.seconds for culprit in container.culprits) == pytest.approx(container.wait)
    assert container.queue_p99 is not None and 2**19 <= container.queue_p99 * 1e9 <= 2**20


def test_network_figures_by_subject() -> None:
    window = replace(
        retransmits_only({1: 30, 2: 0, 3: 20}),
        source="bpf",
        softirq_ns=ints(10**9, 0, 0),
        backlog_sum=ints(900, 0, 300),
        backlog_count=ints(3, 0, 1),
        culprits=CulpritMatrix(ints(1), ints(2), ints(10**9), ints(7)),
    )
    figures = netstall.by_subject(window, 10.0, owner)
    assert set(figures) == {"c://one"}, "nothing happened to the other"
    container = figures["c://one"]
    assert (container.softirq, container.backlog) == pytest.approx((0.1, 300.0))
    assert container.softirq_p99 is None
    assert [culprit.owner.label for culprit in container.culprits] == ["two"]
    assert [culprit.seconds for culprit in container.culprits] == pytest.approx([0.1])


def test_a_pod_as_a_whole_has_no_container_labels() -> None:
    pod = Subject(
        SubjectKind.POD, "uid", "kubepods/pod", "web", qos="LS", pod_uid="uid", pod_name="web", namespace="shop"
    )
    assert netstall.net_labels(pod) == ("uid", "web", "shop", "", "", "LS")


@dataclass(frozen=True)
class Reading:
    time_ns: int
    source: str = "bpf"


@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=60), st.floats(1, 20))
def test_a_window_is_as_long_as_requested_and_up_to_a_quarter_more(steps: list[int], seconds: float) -> None:
    window: SnapshotWindow[Reading] = SnapshotWindow(seconds)
    times = (np.cumsum(steps) * 1_000_000).tolist()
    for number, at in enumerate(times):
        window.push(Reading(at))
        span = window.span()
        if number == 0:
            assert span is None
            continue
        assert span is not None
        old, new, length = span
        assert new.time_ns == at and length == pytest.approx((at - old.time_ns) / 1e9)
        assert old.time_ns == times[0] or length >= seconds * (1 - JITTER_RATIO)
        # The step after the anchor may be longer than a quarter: then that step is the error.
        assert length <= 1.25 * seconds + 2 * max(steps) / 1e3


def test_a_reading_that_comes_early_does_not_make_the_window_longer() -> None:
    window: SnapshotWindow[Reading] = SnapshotWindow(3)
    for at in (0.0, 1.01, 2.0, 3.01, 4.0):
        window.push(Reading(int(at * 1e9)))
    span = window.span()
    assert span is not None
    assert span[2] == pytest.approx(2.99)


def test_another_source_starts_a_new_snapshot_window() -> None:
    window: SnapshotWindow[Reading] = SnapshotWindow(10)
    for at in (1, 2, 3):
        window.push(Reading(at * 10**9))
    window.push(Reading(4 * 10**9, "files"))
    assert window.span() is None
