"""From cgroup ids to containers: sums over a container's own groups, windows, blame."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.stalls.latency import blame, by_subject, culprit_owner, identity, longest
from koordlet.metricsadvisor.stalls.waiting import Waiting
from koordlet.probes.culprits.charges import Charges, Waits
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIAL_KEYS
from koordlet.probes.schedlatency.snapshot import Lost, SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS", namespace="prod", pod_name="web-0")
JOB = Subject(SubjectKind.CONTAINER, "containerd://job", "k/job", "job", qos="BE", namespace="batch", pod_name="job-0")
SSH = Owner("system", "ssh.service")
OWNERS = {10: owner_of(WEB), 11: owner_of(WEB), 20: owner_of(JOB), 30: SSH}


def owner(cgroup_id: int) -> Owner:
    return OWNERS.get(cgroup_id, Owner("gone", f"cgroup {cgroup_id}"))


def snapshot(second: float, keys=(), waits=(), matrix=(), throttled=(), source="bpf") -> SchedLatencySnapshot:
    """`waits`: for each key {bucket: count}; sums are count * 1 ms. `matrix`: (victim, culprit, ns)."""
    n = len(keys)
    hist = np.zeros((n, BUCKETS), dtype=np.int64)
    for row, buckets in enumerate(waits):
        for bucket, count in buckets.items():
            hist[row, bucket] = count
    zeros = np.zeros(n, dtype=np.int64)
    column = np.array([list(row) for row in matrix], dtype=np.int64).reshape(len(matrix), 3)
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
        victim=column[:, 0],
        culprit=column[:, 1],
        wait_ns=column[:, 2],
        wait_count=np.ones(len(matrix), dtype=np.int64),
        lost=Lost(),
    )


def test_a_containers_own_groups_count_as_the_container():
    window = snapshot(
        1, keys=(10, 11, 20, 30), waits=({10: 3}, {10: 1}, {4: 8}, {0: 5}), throttled=(0, 500_000_000, 0, 0)
    )
    got = by_subject(window, 2.0, owner)
    assert got.keys() == {WEB.key, JOB.key}
    web = got[WEB.key]
    assert (web.count, web.wait, web.throttled) == (4, pytest.approx(0.002), 0.25)
    assert web.p50 is not None and web.p99 is not None
    assert 2**19 / 1e9 <= web.p50 <= web.p99 <= 2**20 / 1e9  # bucket 10 holds 2^19..2^20 ns
    assert got[JOB.key].p99 <= 2**14 / 1e9


def test_a_container_that_never_waited_has_no_percentile():
    got = by_subject(snapshot(1, keys=(10,), waits=({},)), 1.0, owner)[WEB.key]
    assert (got.p50, got.p99, got.count, got.wait) == (None, None, 0, 0.0)


def test_blame_is_by_culprit_and_longest_first():
    matrix = [
        (10, 20, 700),
        (11, 20, 100),
        (10, 30, 150),
        (10, SPECIAL_KEYS["ksoftirqd"], 50),
        (20, 10, 9),
        (30, 20, 5),
    ]
    found = blame(snapshot(1, matrix=matrix), owner)
    assert [(b.owner.kind, b.owner.name, round(b.seconds * 1e9), b.count) for b in found[WEB.key]] == [
        ("container", "job", 800, 2),
        ("system", "ssh.service", 150, 1),
        ("kernel", "ksoftirqd", 50, 1),
    ]
    assert found[JOB.key][0].owner.subject is WEB
    assert len(found) == 2  # ssh.service is no subject here
    assert Waiting.of(snapshot(1, matrix=matrix), owner, [JOB.key]).victims == [JOB.key]


def charged(entries):
    """Charges of (victim's key, culprit's key, ns), a place each."""
    keys = sorted({key for entry in entries for key in entry[:2]} | {10, 20, 30})
    number = {key: at + 2 for at, key in enumerate(keys)}  # slot + 1; slot 0 is free
    return Charges(
        source="bpf",
        time_ns=1,
        size=64,
        at=np.arange(len(entries), dtype=np.int32),
        key=np.array([number[victim] << 16 | number[culprit] for victim, culprit, _ in entries], dtype=np.uint32),
        wait_ns=np.array([ns for *_, ns in entries], dtype=np.int64),
        count=np.ones(len(entries), dtype=np.int64),
        slot_keys=np.array([0, *keys], dtype=np.int64),
    )


KEYS = st.sampled_from((10, 11, 20, 30, SPECIAL_KEYS["idle"], SPECIAL_KEYS["older"]))


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(0, 2**40)), max_size=40), st.integers(1, 50))
def test_counting_charges_finds_what_merging_a_snapshot_finds(entries, piece):
    def told(waiting):
        return {
            (victim, identity(who)): ns
            for victim, row in zip(waiting.victims, waiting.ns.tolist(), strict=True)
            for who, ns in zip(waiting.culprits, row, strict=True)
            if ns
        }

    only = [WEB.key, JOB.key]
    charges = charged(entries)
    parts = (slice(at, at + piece) for at in range(0, len(entries), piece))
    waits = Waits(charges.slot_keys, ((charges.key[part], charges.wait_ns[part]) for part in parts))
    counted = Waiting.of_waits(waits, owner, only)
    assert told(counted) == told(Waiting.of(snapshot(1, matrix=entries), owner, only))


def test_an_entry_of_a_slot_without_a_key_is_nobodys():
    charges = charged([(10, 20, 7), (20, 10, 5)])
    charges.slot_keys[2] = 0
    waits = Waits(charges.slot_keys, [(charges.key, charges.wait_ns)])
    assert Waiting.of_waits(waits, owner, [WEB.key, JOB.key]).ns.sum() == 0


def test_forgotten_slices_are_spread_over_the_known_culprits():
    older, moved = SPECIAL_KEYS["older"], SPECIAL_KEYS["moved"]
    found = blame(snapshot(1, matrix=[(10, 20, 300), (10, 30, 100), (10, older, 300), (10, moved, 100)]), owner)[
        WEB.key
    ]
    assert [(b.owner.name, round(b.seconds * 1e9)) for b in found] == [("job", 600), ("ssh.service", 200)]
    alone = blame(snapshot(1, matrix=[(10, older, 400)]), owner)[WEB.key]
    assert [(b.owner.name, round(b.seconds * 1e9)) for b in alone] == [("older", 400)]


@given(st.lists(st.tuples(KEYS, KEYS, st.integers(0, 2**40)), max_size=40), st.integers(1, 4))
def test_the_longest_few_are_the_first_of_all_and_their_total_is_everybodys(entries, most):
    matrix = snapshot(1, matrix=entries)
    everybody, few = blame(matrix, owner, 2.0), longest(matrix, owner, most, 2.0)
    assert {name: blames for name, (blames, _) in few.items()} == {n: found[:most] for n, found in everybody.items()}
    for name, (_, total) in few.items():
        assert total == pytest.approx(sum(one.seconds for one in everybody[name]))


def test_special_runners_have_names():
    assert culprit_owner(SPECIAL_KEYS["idle"], owner).kind == "idle"
    assert culprit_owner(SPECIAL_KEYS["kworker"], owner) == Owner("kernel", "kworker")
    assert culprit_owner(4711, owner).label == "cgroup 4711"
