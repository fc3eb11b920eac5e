"""From cgroup ids to containers: kinds, own limits, and the culprits by pressure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metricsadvisor.collector import ProbeContext
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector, by_subject, pressure_shares
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.memstall.snapshot import KINDS, MemStallSnapshot, sums_only
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex, Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS", namespace="prod", pod_name="web-0")
JOB = Subject(SubjectKind.CONTAINER, "containerd://job", "k/job", "job", qos="BE", namespace="batch", pod_name="job-0")
SSH = Owner("system", "ssh.service")
OWNERS = {10: owner_of(WEB), 11: owner_of(WEB), 20: owner_of(JOB), 30: SSH}
WEBS_LIMIT, KUBEPODS = 110, 100
LIMITS = {WEBS_LIMIT: owner_of(WEB), KUBEPODS: Owner("qos", "kubepods")}


def owner(cgroup_id: int) -> Owner:
    return OWNERS.get(cgroup_id, Owner("gone", f"cgroup {cgroup_id}"))


def limit(cgroup_id: int) -> Owner:
    return LIMITS.get(cgroup_id, Owner("gone", f"cgroup {cgroup_id}"))


def window(
    stalls: dict[int, dict[str, int]],
    reclaims: dict[tuple[int, int], tuple[int, int]] | None = None,
    wakeups: dict[int, int] | None = None,
    second: float = 1.0,
) -> MemStallSnapshot:
    """`stalls`: key -> kind -> ms, in stalls of 1 ms; `reclaims`: (task, limit) -> (ms, count)."""
    base = sums_only(dict.fromkeys({*stalls, *(wakeups or {})}, 0))
    sums, hist = base.sum_ns.copy(), base.hist.copy()
    for row, key in enumerate(base.keys.tolist()):
        for kind, ms in stalls.get(key, {}).items():
            sums[row, KINDS.index(kind)] = ms * 1_000_000
            hist[row, KINDS.index(kind), 10] = ms  # bucket 10 holds 0.52 to 1.05 ms
    pairs = sorted(reclaims or {})
    return replace(
        base,
        source="bpf",
        time_ns=int(second * 1e9),
        sum_ns=sums,
        hist=hist,
        wakeups=np.array([(wakeups or {}).get(key, 0) for key in base.keys.tolist()], dtype=np.int64),
        limits=CulpritMatrix(
            victim=np.array([pair[0] for pair in pairs], dtype=np.int64),
            culprit=np.array([pair[1] for pair in pairs], dtype=np.int64),
            ns=np.array([(reclaims or {})[pair][0] * 1_000_000 for pair in pairs], dtype=np.int64),
            count=np.array([(reclaims or {})[pair][1] for pair in pairs], dtype=np.int64),
        ),
    )


def test_kinds_are_summed_over_a_containers_own_groups() -> None:
    figures = by_subject(
        window({10: {"direct": 30, "refault": 10}, 11: {"direct": 20}, 30: {"direct": 9}}), 2.0, owner, limit
    )
    assert figures.keys() == {WEB.key}, "a cgroup that belongs to no subject has no figures"
    web = figures[WEB.key]
    assert web.seconds == pytest.approx({"direct": 0.025, "refault": 0.005})
    assert web.p99 is not None and 0.0005 < web.p99 < 0.0011


def test_a_limit_within_the_container_is_its_own() -> None:
    stalls = {11: {"own_limit": 5, "ancestor": 40}}
    reclaims = {(11, WEBS_LIMIT): (30, 3), (11, 11): (5, 1), (11, KUBEPODS): (10, 1)}
    figures = by_subject(window(stalls, reclaims), 1.0, owner, lambda at: OWNERS.get(at) or limit(at))[WEB.key]
    assert figures.seconds == pytest.approx({"own_limit": 0.035, "ancestor": 0.010})


def test_pressure_on_the_node_is_shared_by_how_often_each_pressed() -> None:
    stalls = window({10: {"direct": 90}}, {(10, 0): (90, 2), (20, 0): (10, 4)}, {20: 2, SPECIAL_KEYS["kworker"]: 1})
    shares = pressure_shares(stalls, owner, limit)
    assert [(share.owner.label, share.count) for share in shares[WEB.key]] == [
        ("batch/job-0/job", 6),
        ("prod/web-0/web", 2),
        ("kworker", 1),
    ]
    assert [share.seconds for share in shares[WEB.key]] == pytest.approx([0.060, 0.020, 0.010])


def test_at_its_own_limit_a_container_is_its_only_culprit() -> None:
    shares = pressure_shares(window({10: {}}, {(10, WEBS_LIMIT): (50, 5), (20, 0): (1, 9)}), owner, limit)
    assert [(share.owner.label, share.seconds) for share in shares[WEB.key]] == [("prod/web-0/web", 0.05)]


def test_a_common_limit_is_shared_by_those_below_it_only() -> None:
    shares = pressure_shares(
        window({}, {(10, KUBEPODS): (40, 1), (20, KUBEPODS): (1, 3), (30, 0): (5, 99)}), owner, limit
    )
    assert [share.owner.label for share in shares[WEB.key]] == ["batch/job-0/job", "prod/web-0/web"]
    assert [share.seconds for share in shares[WEB.key]] == pytest.approx([0.030, 0.010])


def test_many_culprits_are_the_ten_largest_and_the_rest() -> None:
    shares = pressure_shares(window({}, {(10, 0): (100, 1)}, {1000 + i: i + 1 for i in range(20)}), owner, limit)[
        WEB.key
    ]
    assert len(shares) == 11
    assert [share.owner.name for share in shares if share.owner.kind == "gone"] == [
        f"cgroup {1019 - i}" for i in range(10)
    ]
    [rest_share] = [share for share in shares if share.owner.kind == "other"]
    assert rest_share.count == sum(range(1, 11)) + 1
    assert sum(share.seconds for share in shares) == pytest.approx(0.1)


entries = st.dictionaries(
    st.tuples(st.sampled_from([10, 11, 20, 30, 40]), st.sampled_from([0, WEBS_LIMIT, KUBEPODS])),
    st.tuples(st.integers(1, 10_000), st.integers(1, 100)),
)


@given(entries, st.dictionaries(st.sampled_from([10, 20, 30, -3]), st.integers(1, 50)))
def test_shares_add_up_to_the_reclaiming_time(
    reclaims: dict[tuple[int, int], tuple[int, int]], wakeups: dict[int, int]
) -> None:
    shares = pressure_shares(window({}, reclaims, wakeups), owner, limit)
    for subject, ids in ((WEB, (10, 11)), (JOB, (20,))):
        expected = sum(ms for (task, _), (ms, _) in reclaims.items() if task in ids) / 1e3
        assert sum(share.seconds for share in shares.get(subject.key, [])) == pytest.approx(expected)


class Readings:
    """A source that returns the given snapshots."""

    source = "bpf"

    def __init__(self, *snapshots: MemStallSnapshot) -> None:
        self.left = list(snapshots)

    def read(self) -> MemStallSnapshot:
        return self.left.pop(0)

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Holds nothing."""


def collector(registries: Registries, *snapshots: MemStallSnapshot) -> MemStallCollector:
    index = CgroupIndex(lambda: [("k/web", 10), ("k/web/own", 11), ("k/job", 20)])
    context = ProbeContext(lambda: Workloads(1, subjects=(WEB, JOB)), registries, index, clock=lambda: 100.0)
    memory = MemStallCollector(context, limits=index)
    memory.attach(Readings(*snapshots))
    return memory


def test_a_window_and_what_is_exported() -> None:
    registries = Registries()
    registries.node = "n"
    first, second = (
        window({10: {"direct": 100}}, second=1.0),
        window({10: {"direct": 150}, 20: {"own_limit": 20}}, {(10, 0): (150, 3), (20, 20): (20, 2)}, second=3.0),
    )
    memory = collector(registries, first, second)
    memory.read()
    assert memory.figures == {}
    memory.read()
    assert memory.figures[WEB.key].seconds == pytest.approx({"direct": 0.025})
    assert memory.figures[JOB.key].seconds == {"own_limit": pytest.approx(0.010)}
    rows = {
        (sample.name, sample.labels["container_name"], sample.labels.get("kind", sample.labels.get("culprit", ""))): (
            sample.value
        )
        for family in registries.external.collect()
        for sample in family.samples
        if "mem_stall" in sample.name and "bucket" not in sample.name
    }
    assert rows[("koordlet_mem_stall_kind_seconds_total", "web", "direct")] == pytest.approx(0.150)
    assert rows[("koordlet_mem_stall_seconds_sum", "job", "")] == pytest.approx(0.020)
    assert rows[("koordlet_mem_stall_seconds_count", "job", "")] == 20
    assert rows[("koordlet_mem_stall_culprit_share", "job", "job")] == 1.0


def test_without_a_source_nothing_happens() -> None:
    index, registries = CgroupIndex(list), Registries()
    registries.node = "n"
    context = ProbeContext(lambda: Workloads(1), registries, index, clock=float)
    memory = MemStallCollector(context, limits=index)
    memory.read()
    assert memory.figures == {} and memory.latest is None
    list(registries.external.collect())
    failed = registries.internal.get_sample_value(
        "koordlet_metric_provider_failures_total", {"family": "mem_stall_seconds"}
    )
    assert not failed
