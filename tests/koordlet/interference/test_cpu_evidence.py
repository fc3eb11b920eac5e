"""Evidence about the CPU: worked examples, and the invariant that the parts never exceed the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import DEFAULT, InterferenceStrategy, InterferenceThresholds
from koordlet.interference.attribution import MIN_WANTED_CORES, Attribution, WaitShares
from koordlet.interference.cadence import noticeable_cpu_loss, noticeably_behind_packets
from koordlet.interference.cpu import CpuReading, CpuWindow, cpu_evidence, possible_loss
from koordlet.interference.model import ResourceEvidence
from koordlet.interference.rows import ContainerRows
from koordlet.metricsadvisor.stalls.attribution import CulpritTime, culprits_by_subject
from koordlet.probes.culprits.lookup import HASH_BUCKETS
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.reader import MatrixReading
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.culprits.window import CulpritWindow
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from tests.koordlet.interference.conftest import Make
from tests.present import present

WEB, BATCH, INNER = 100, 200, 101
"""Cgroup ids; INNER is a sub-cgroup of web."""


def culprit_matrix(entries: Sequence[tuple[int, int, float]]) -> CulpritMatrix:
    """Entries are (victim, culprit, seconds)."""
    ordered = sorted(entries)
    victim, culprit = (np.array([entry[side] for entry in ordered], dtype=np.int64) for side in (0, 1))
    ns = np.array([int(seconds * 1e9) for *_, seconds in ordered], dtype=np.int64)
    return CulpritMatrix(victim, culprit, ns, np.ones(len(ordered), dtype=np.int64))


def snapshot(
    seconds: float,
    *,
    waited: dict[int, float] | None = None,
    throttled: dict[int, float] | None = None,
    source: str = "bpf",
) -> SchedLatencySnapshot:
    """Cumulative seconds by key at one moment."""
    keys = np.array([WEB, INNER, BATCH])
    total = np.array([(waited or {}).get(key, 0.0) for key in keys.tolist()])
    quota = np.array([(throttled or {}).get(key, 0.0) for key in keys.tolist()])
    hist = np.zeros((3, BUCKETS), dtype=np.int64)
    hist[:, 5] = (total * 100).astype(np.int64)
    none = np.zeros(3, dtype=np.int64)
    return SchedLatencySnapshot(
        source=source,
        time_ns=int(seconds * 1e9),
        keys=keys,
        wakeup_hist=hist,
        preempt_hist=np.zeros_like(hist),
        wakeup_sum_ns=(total * 1e9).astype(np.int64),
        preempt_sum_ns=none,
        wakeup_max_ns=none,
        preempt_max_ns=none,
        throttled_ns=(quota * 1e9).astype(np.int64),
        throttled_count=none,
        lost=SchedLatencyLosses(),
    )


ROWS = ContainerRows(np.array([WEB, INNER, BATCH]), np.array([0, 0, 1]), 2)


def evidence(
    make: type[Make],
    last: SchedLatencySnapshot,
    *,
    matrix: Sequence[tuple[int, int, float]] = (),
    ran: tuple[float, float] = (0.4, 1.0),
    periods: tuple[float, float] = (0.0, 0.0),
    first: Any = None,
    guess: Callable[..., Any] = lambda _: (),
) -> ResourceEvidence:
    web, batch = make.container("web"), make.container("batch", qos="BE")
    owners = {WEB: owner_of(web), INNER: owner_of(web), BATCH: owner_of(batch)}
    window = CpuWindow(2.0)
    window.push(first or snapshot(1.0, source=last.source))
    window.push(last)
    reading = CpuReading(*window.sums(), ROWS, np.array(ran), np.array(periods))  # type: ignore[call-arg, misc]
    attribution = Attribution.of(
        culprit_matrix(matrix), 2.0, ROWS, lambda key: owners.get(key) or Owner("gone", str(key))
    )
    return cpu_evidence(reading, attribution.shares(reading.waited), attribution, guess)


def test_neighbours_own_threads_and_quota_are_separate_figures(make: type[Make]) -> None:
    matrix = [(WEB, BATCH, 0.6), (WEB, WEB, 0.1), (INNER, WEB, 0.1), (WEB, SPECIAL_KEYS["idle"], 0.2)]
    measured = evidence(make, snapshot(3.0, waited={WEB: 0.9, INNER: 0.1}, throttled={WEB: 0.4}), matrix=matrix)
    others, threads, quota = 0.3, 0.1, 0.2  # per second, of 2 s
    wanted_cores = 0.4 + others + threads + quota + MIN_WANTED_CORES
    assert measured.others[0] == pytest.approx(others / wanted_cores)
    assert measured.own[0] == pytest.approx((threads + quota) / wanted_cores)
    assert {name: column[0] for name, column in measured.parts.items()} == pytest.approx(
        {"quota": quota, "threads": threads}
    )
    culprits = {item.owner.name: item.seconds for item in measured.culprits(0)}
    assert culprits == pytest.approx({"batch": 0.3, "web": 0.1, "idle": 0.1}), "per second, of 2 s"
    assert measured.named
    assert not measured.culprits(1)


def test_waiting_behind_an_unknown_runner_is_spread_over_the_known_ones(make: type[Make]) -> None:
    matrix = [(WEB, BATCH, 0.3), (WEB, WEB, 0.1), (WEB, SPECIAL_KEYS["older"], 0.4)]
    measured = evidence(make, snapshot(3.0, waited={WEB: 0.8}), matrix=matrix)
    assert measured.parts["threads"][0] == pytest.approx(0.4 * 0.25)


@pytest.mark.parametrize(("throttled", "cause"), [(0.5, "own"), (0.0, "others")])
def test_without_a_probe_throttled_periods_decide_the_cause(make: type[Make], throttled: float, cause: str) -> None:
    """schedstat does not distinguish waiting for the quota from waiting for others."""
    guessed = [CulpritTime(Owner("container", "batch"), 0.5, 1)]
    measured = evidence(
        make,
        snapshot(3.0, waited={WEB: 1.0}, source="schedstat"),
        periods=(throttled, 0.0),
        guess=lambda row: guessed if row == 0 else [],
    )
    assert getattr(measured, cause)[0] == pytest.approx(0.5 / (0.4 + 0.5 + MIN_WANTED_CORES))
    assert getattr(measured, "own" if cause == "others" else "others")[0] == 0.0
    assert not measured.named
    assert measured.latency is None
    assert measured.culprits(0) == guessed


RAN = np.array([0.5, 1.0])
OWN = WaitShares(np.array([0.9, 0.0]), np.array([0.1, 0.0]), np.array([0.4, 0.0]), np.zeros(2), np.zeros(2))
"""Web's own threads delayed each other for 0.4 seconds per second."""


@pytest.mark.parametrize(
    ("shares", "waited", "share"),
    [
        (WaitShares.none(2), 0.01, 0.01 / (0.01 + 0.5 + MIN_WANTED_CORES)),
        (WaitShares.none(2), 0.5, 0.5 / (0.5 + 0.5 + MIN_WANTED_CORES)),
        (OWN, 0.4, 0.0),
        (OWN, 0.2, 0.0),
        (OWN, 0.6, 0.2 / (0.2 + 0.5 + MIN_WANTED_CORES)),
    ],
    ids=["almost none", "no reading yet", "explained", "less than explained", "more than explained"],
)
def test_the_possible_loss_is_the_waiting_without_another_explanation(
    shares: WaitShares, waited: float, share: float
) -> None:
    assert possible_loss(np.array([waited, 0.0]), shares, RAN) == pytest.approx([share, 0.0])


def test_shares_follow_their_container() -> None:
    moved = OWN.moved(("web", "batch"), ("new", "batch", "web"))
    assert moved.own.tolist() == [0.0, 0.0, 0.9]
    assert moved.waited.tolist() == [0.0, 0.0, 0.4]
    assert WaitShares.none(0).moved((), ("new",)).others.tolist() == [1.0]


def test_waiting_behind_ksoftirqd_is_a_separate_share(make: type[Make]) -> None:
    matrix = [(WEB, SPECIAL_KEYS["ksoftirqd"], 0.3), (WEB, BATCH, 0.1), (WEB, SPECIAL_KEYS["older"], 0.4)]
    shares = Attribution.of(culprit_matrix(matrix), 2.0, ROWS, lambda key: Owner("gone", str(key))).shares(
        np.array([0.8, 0.0])
    )
    assert shares.ksoftirqd.tolist() == pytest.approx([0.75, 0.0])
    assert shares.others.tolist() == pytest.approx([1.0, 1.0])  # it also counts as caused by others


def test_half_of_the_smallest_threshold_is_noticeable() -> None:
    assert noticeable_cpu_loss(DEFAULT) == pytest.approx(0.04)
    assert noticeable_cpu_loss(InterferenceStrategy(cpu=InterferenceThresholds(lost_percent=20))) == 0.0


def test_the_window_slides_and_restarts_with_another_source() -> None:
    window = CpuWindow(2.0)
    assert window.sums() is None
    for second in range(10):
        window.push(snapshot(float(second), waited={WEB: second * 0.1}))
    latency, seconds = window.sums()  # type: ignore[misc]
    assert seconds == 2.0
    assert latency.sum_ns.sum() == pytest.approx(0.2e9)
    window.push(snapshot(11.0, source="schedstat"))
    assert window.sums() is None


def test_a_snapshot_that_comes_early_does_not_make_the_window_longer() -> None:
    window = CpuWindow(2.0)
    for second in (0.0, 1.01, 2.0, 3.01, 4.0):
        window.push(snapshot(second))
    _, seconds = window.sums()  # type: ignore[misc]
    assert seconds == 2.0
    window.push(snapshot(4.95))
    _, seconds = window.sums()  # type: ignore[misc]
    assert seconds == pytest.approx(1.94)


def test_culprits_are_those_of_the_window() -> None:
    window = CulpritWindow(2.0)
    assert window.due(0, 2.0)
    keys = np.array([WEB, BATCH])

    def reading(second: int, ns: int, source: str = "bpf") -> MatrixReading:
        key, position = np.array([1 << 16 | 2], dtype=np.uint32), np.array([5], dtype=np.int32)
        return MatrixReading(source, int(second * 1e9), position, key, np.array([ns]), np.array([second]), keys)

    for second in range(10):
        window.push(reading(second, second * 100))
    matrix, seconds = window.pushed()  # type: ignore[misc]
    assert seconds == 2.0
    assert {*matrix.victim.tolist()} == {WEB}
    assert {*matrix.culprit.tolist()} == {BATCH}
    assert (matrix.ns.sum(), matrix.count.sum()) == (200, 2)
    assert not window.due(int(9.9e9), 1.0)
    assert window.due(int(10e9), 1.0)
    window.push(reading(11, 5, source="bcc"))
    assert window.pushed() is None


seconds = st.floats(0.0, 50.0)


@settings(deadline=None, max_examples=60)
@given(seconds, seconds, seconds, seconds, st.floats(0.0, 8.0))
def test_the_parts_never_exceed_the_whole(
    make: type[Make], by_others: float, by_own: float, by_idle: float, quota: float, ran: float
) -> None:
    matrix = [(WEB, BATCH, by_others), (WEB, WEB, by_own), (WEB, SPECIAL_KEYS["idle"], by_idle)]
    waited = by_others + by_own + by_idle
    measured = evidence(
        make, snapshot(3.0, waited={WEB: waited}, throttled={WEB: quota}), matrix=matrix, ran=(ran, 0.0)
    )
    assert 0.0 <= measured.others[0] <= 1.0
    assert 0.0 <= measured.own[0] <= 1.0
    assert measured.others[0] + measured.own[0] <= 1.0 + 1e-9


shares = st.dictionaries(
    st.tuples(
        st.sampled_from([WEB, INNER, BATCH, 300]),
        st.sampled_from([WEB, INNER, BATCH, 300, SPECIAL_KEYS["idle"], SPECIAL_KEYS["older"], SPECIAL_KEYS["moved"]]),
    ),
    st.floats(0.001, 5.0),
)


@given(shares)
def test_the_culprits_of_a_row_equal_those_of_the_whole_matrix(
    make: type[Make], waits: dict[tuple[int, int], float]
) -> None:
    """`Attribution.top` and `culprits_by_subject` give the same result."""
    owners = {WEB: owner_of(make.container("web")), BATCH: owner_of(make.container("batch", qos="BE"))}
    owners[INNER] = owners[WEB]

    def owner(key: int) -> Owner:
        return owners.get(key) or Owner("gone", str(key))

    matrix = culprit_matrix([(victim, culprit, seconds) for (victim, culprit), seconds in waits.items()])
    attribution = Attribution.of(matrix, 2.0, ROWS, owner)
    expected = culprits_by_subject(matrix, owner, 2.0)
    for row, name in enumerate(("web", "batch")):
        subject = owners[(WEB, BATCH)[row]].subject
        top = attribution.top(row)
        of_subject = expected.get(present(subject).key, ())
        assert {item.owner: item.count for item in top} == {item.owner: item.count for item in of_subject}, name
        seconds = {item.owner: item.seconds for item in of_subject}
        assert {item.owner: item.seconds for item in top} == pytest.approx(seconds), name
        assert [item.seconds for item in top] == sorted((item.seconds for item in top), reverse=True)


@pytest.mark.parametrize(
    ("waited", "packet_seconds", "noticeable"),
    [(0.05, 0.1, True), (0.05, 0.0, False), (0.05, 0.005, False), (0.005, 0.1, False)],
    ids=["behind the thread", "thread idle", "thread almost idle", "almost no waiting"],
)
def test_waiting_that_packets_may_have_caused_is_noticeable(
    waited: float, packet_seconds: float, noticeable: bool
) -> None:
    assert noticeably_behind_packets(np.array([waited]), np.array([0.5]), packet_seconds, DEFAULT).tolist() == [
        noticeable
    ]


def test_ids_that_share_their_low_bits_are_distinguished() -> None:
    keys = np.array([7, 8, 7 + HASH_BUCKETS, 7 + 5 * HASH_BUCKETS])
    rows = ContainerRows(keys, np.array([2, -1, 0, 1]), 3)
    queried = np.array([7 + 5 * HASH_BUCKETS, 7, 0, -1, 8, 7 + HASH_BUCKETS, 7 + 2 * HASH_BUCKETS, 7])
    assert rows.of(queried).tolist() == [1, 2, -1, -1, -1, 0, -1, 2]
    assert ContainerRows(keys[:0], keys[:0], 3).of(queried).tolist() == [-1] * len(queried)
