"""From cgroup ids to containers: sums over a container's sub-groups, windows, culprits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from koordlet.metricsadvisor.stalls.attribution import (
    SubjectNaming,
    culprit_owner,
    culprits_by_subject,
    identity,
    top_culprits,
)
from koordlet.metricsadvisor.stalls.schedlatency import by_subject
from koordlet.probes.culprits.matrix import CulpritMatrix, SubjectTable
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS", namespace="prod", pod_name="web-0")
JOB = Subject(SubjectKind.CONTAINER, "containerd://job", "k/job", "job", qos="BE", namespace="batch", pod_name="job-0")
SSH = Owner("system", "ssh.service")
OWNERS = {10: owner_of(WEB), 11: owner_of(WEB), 20: owner_of(JOB), 30: SSH}


def owner(cgroup_id: int) -> Owner:
    return OWNERS.get(cgroup_id, Owner("gone", f"cgroup {cgroup_id}"))


def culprit_matrix(entries: list[tuple[int, int, int]]) -> CulpritMatrix:
    """Entries are (victim, culprit, ns)."""
    column = np.array([list(entry) for entry in entries], dtype=np.int64).reshape(len(entries), 3)
    return CulpritMatrix(column[:, 0], column[:, 1], column[:, 2], np.ones(len(entries), dtype=np.int64))


def snapshot(
    second: float,
    keys: tuple[int, ...] = (),
    waits: tuple[dict[int, int], ...] = (),
    throttled: tuple[int, ...] = (),
    source: str = "bpf",
) -> SchedLatencySnapshot:
    """`waits`: for each key {bucket: count}; sums are count * 1 ms."""
    n = len(keys)
    hist = np.zeros((n, BUCKETS), dtype=np.int64)
    for row, buckets in enumerate(waits):
        for bucket, count in buckets.items():
            hist[row, bucket] = count
    zeros = np.zeros(n, dtype=np.int64)
    return SchedLatencySnapshot(
        source=source,
        time_ns=int(second * 1e9),
        keys=np.array(keys, dtype=np.int64),
        wakeup_hist=hist,
        preempt_hist=np.zeros_like(hist),
        wakeup_sum_ns=hist.sum(axis=1) * 1_000_000,
        preempt_sum_ns=zeros,
        wakeup_max_ns=zeros,
        preempt_max_ns=zeros,
        throttled_ns=np.array(throttled or [0] * n, dtype=np.int64),
        throttled_count=zeros,
        lost=SchedLatencyLosses(),
    )


def test_a_containers_own_groups_count_as_the_container() -> None:
    window = snapshot(
        1, keys=(10, 11, 20, 30), waits=({10: 3}, {10: 1}, {4: 8}, {0: 5}), throttled=(0, 500_000_000, 0, 0)
    )
    figures = by_subject(window, 2.0, owner)
    assert figures.keys() == {WEB.key, JOB.key}
    web = figures[WEB.key]
    assert (web.count, web.wait, web.throttled) == pytest.approx((4, 0.002, 0.25))
    assert web.p50 is not None and web.p99 is not None
    assert 2**19 / 1e9 <= web.p50 <= web.p99 <= 2**20 / 1e9  # bucket 10 holds 2^19..2^20 ns
    assert figures[JOB.key].p99 <= 2**14 / 1e9  # type: ignore[operator]


def test_a_container_that_never_waited_has_no_percentile() -> None:
    figures = by_subject(snapshot(1, keys=(10,), waits=({},)), 1.0, owner)[WEB.key]
    assert (figures.p50, figures.p99, figures.count, figures.wait) == (None, None, 0, 0.0)


def test_culprits_are_by_owner_and_longest_first() -> None:
    entries = [
        (10, 20, 700),
        (11, 20, 100),
        (10, 30, 150),
        (10, SPECIAL_KEYS["ksoftirqd"], 50),
        (20, 10, 9),
        (30, 20, 5),
    ]
    culprits = culprits_by_subject(culprit_matrix(entries), owner)
    assert [(c.owner.kind, c.owner.name, round(c.seconds * 1e9), c.count) for c in culprits[WEB.key]] == [
        ("container", "job", 800, 2),
        ("system", "ssh.service", 150, 1),
        ("kernel", "ksoftirqd", 50, 1),
    ]
    assert culprits[JOB.key][0].owner.subject is WEB
    assert len(culprits) == 2  # ssh.service is not a subject here
    assert culprit_matrix(entries).by_subject(SubjectNaming(owner, [JOB.key])).victims == [JOB.key]


def table_entries(entries: list[tuple[int, int, int]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(slot keys, entry keys, ns) of a probe's table with these (victim's key, culprit's key, ns)."""
    keys = sorted({key for entry in entries for key in entry[:2]} | {10, 20, 30})
    number = {key: index + 2 for index, key in enumerate(keys)}  # slot + 1; slot 0 is free
    entry_keys = np.array([number[victim] << 16 | number[culprit] for victim, culprit, _ in entries], dtype=np.int64)
    return np.array([0, *keys], dtype=np.int64), entry_keys, np.array([ns for *_, ns in entries], dtype=np.int64)


KEYS = st.sampled_from((10, 11, 20, 30, SPECIAL_KEYS["idle"], SPECIAL_KEYS["older"]))


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(0, 2**40)), max_size=40), st.integers(1, 50))
def test_counting_table_entries_equals_grouping_a_matrix(entries: list[tuple[int, int, int]], piece: int) -> None:
    def nonzero(table: SubjectTable[Any]) -> dict[tuple[str, str], int]:
        return {
            (victim, identity(culprit)): ns
            for victim, row in zip(table.victims, table.ns.tolist(), strict=True)
            for culprit, ns in zip(table.culprits, row, strict=True)
            if ns
        }

    naming = SubjectNaming(owner, [WEB.key, JOB.key])
    slot_keys, entry_keys, ns = table_entries(entries)
    parts = (slice(begin, begin + piece) for begin in range(0, len(entries), piece))
    counted = SubjectTable.of_entries(slot_keys, ((entry_keys[part], ns[part]) for part in parts), naming)
    assert nonzero(counted) == nonzero(culprit_matrix(entries).by_subject(naming).dense())


def test_an_entry_of_a_slot_without_a_key_belongs_to_no_victim() -> None:
    slot_keys, entry_keys, ns = table_entries([(10, 20, 7), (20, 10, 5)])
    slot_keys[2] = 0
    naming = SubjectNaming(owner, [WEB.key, JOB.key])
    assert SubjectTable.of_entries(slot_keys, [(entry_keys, ns)], naming).ns.sum() == 0


def test_waiting_with_an_unknown_runner_is_spread_over_the_known_culprits() -> None:
    older, moved = SPECIAL_KEYS["older"], SPECIAL_KEYS["moved"]
    matrix = culprit_matrix([(10, 20, 300), (10, 30, 100), (10, older, 300), (10, moved, 100)])
    culprits = culprits_by_subject(matrix, owner)[WEB.key]
    assert [(c.owner.name, round(c.seconds * 1e9)) for c in culprits] == [("job", 600), ("ssh.service", 200)]
    alone = culprits_by_subject(culprit_matrix([(10, older, 400)]), owner)[WEB.key]
    assert [(c.owner.name, round(c.seconds * 1e9)) for c in alone] == [("older", 400)]


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(0, 2**40)), max_size=40), st.integers(1, 4))
def test_the_top_culprits_are_the_first_of_all_and_their_total_includes_the_others(
    entries: list[tuple[int, int, int]], limit: int
) -> None:
    matrix = culprit_matrix(entries)
    all_culprits, top = culprits_by_subject(matrix, owner, 2.0), top_culprits(matrix, owner, limit, 2.0)
    assert {name: culprits for name, (culprits, _) in top.items()} == {
        name: culprits[:limit] for name, culprits in all_culprits.items()
    }
    for name, (_, total) in top.items():
        assert total == pytest.approx(sum(culprit.seconds for culprit in all_culprits[name]))


def test_special_runners_have_names() -> None:
    assert culprit_owner(SPECIAL_KEYS["idle"], owner).kind == "idle"
    assert culprit_owner(SPECIAL_KEYS["kworker"], owner) == Owner("kernel", "kworker")
    assert culprit_owner(4711, owner).label == "cgroup 4711"
