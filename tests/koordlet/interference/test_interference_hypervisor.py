"""CPUs that a hypervisor takes away: what it costs is not the neighbours' doing, and a hog is found all the same.

A CPU that is stolen now and then is played through (`Played`): whoever has it keeps it while it is away, as a guest
sees it, and whoever waits for it is charged to whoever has it, as the probe does.
"""

from __future__ import annotations

import heapq
import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference.cpu import HARDLY, Rows, Shares, bounded, cpu_evidence, names_of, shares_of, wanted_by
from koordlet.interference.detector import Detector, blamed
from koordlet.interference.gather import NodeTicks
from koordlet.interference.hypervisor import HYPERVISOR, Stolen
from koordlet.interference.model import Evidence, Resource
from koordlet.metricsadvisor.usage.node import NodeUse
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIAL_KEYS
from koordlet.probes.schedlatency.snapshot import Lost, SchedLatencySnapshot
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of

SECONDS = 3.0
FIRST = 100
"""Cgroup id of container 0; that of container i is i more."""
SERVICE = 99
"""Cgroup id of something that is no container."""


class Played:
    """One CPU for `SECONDS`: container i asks for it every `period[i]` seconds for `burst[i]`, or all the time where
    the period is 0; in turns, each until it is done."""

    def __init__(self, period, burst, *, stolen, stall, seed=1):
        self.random = random.Random(seed)
        self.away = list(self._stalls(stolen, stall))
        self.stolen = sum(min(end, SECONDS) - begin for begin, end in self.away if begin < SECONDS) / SECONDS
        count = len(period)
        self.waits, self.ran = np.zeros((count, count)), np.zeros(count)
        asking = [(self.random.random() * every, who) for who, every in enumerate(period)]
        heapq.heapify(asking)
        now, slices = 0.0, []
        while now < SECONDS:
            since, who = heapq.heappop(asking)  # who asked first
            now = max(now, since)
            for begin, end, runner in reversed(slices):
                if end <= since:
                    break
                self.waits[who, runner] += end - max(begin, since)
            done = self._done(now, burst[who])
            slices.append((now, done, who))
            self.ran[who] += burst[who]
            heapq.heappush(asking, (done + period[who], who))
            now = done
        self.waits /= SECONDS
        self.ran /= SECONDS

    def _stalls(self, part, length):
        now = 0.0
        while part and now < SECONDS:
            begin = now + self.random.expovariate(part / (1.0 - part) / length)
            now = begin + self.random.expovariate(1.0 / length)
            yield begin, now

    def _done(self, now, work):
        for begin, end in self.away:
            if end > now:
                if now + work <= begin:
                    break
                work, now = work - max(begin - now, 0.0), end
        return now + work

    def evidence(self, make, *, told=True):
        """As koordlet judges it; *told*: whether /proc/stat says what was stolen."""
        count = len(self.ran)
        stolen = Stolen(self.stolen, float(self.ran.sum()), self.ran) if told and self.stolen else None
        return evidence_of(self.waits, self.ran, stolen, [make.container(f"c{i}") for i in range(count)])


def window_of(waits, extra=()):
    """Totals and matrix of `SECONDS`; waits in seconds a second, *extra*: (container, culprit's key, the same)."""
    count = len(waits)
    victim, culprit = (FIRST + at for at in np.nonzero(waits))
    ns = waits[waits > 0] * 1e9 * SECONDS
    for row, key, seconds in extra:
        victim, culprit = np.append(victim, FIRST + row), np.append(culprit, key)
        ns = np.append(ns, seconds * 1e9 * SECONDS)
    order = np.lexsort((culprit, victim))
    none = np.zeros(count, dtype=np.int64)
    hist = np.zeros((count, BUCKETS), dtype=np.int64)
    total = np.bincount(victim - FIRST, ns, count)
    return SchedLatencySnapshot(
        source="bpf",
        time_ns=int(SECONDS * 1e9),
        keys=np.arange(FIRST, FIRST + count),
        wakeup_hist=hist,
        preempt_hist=hist,
        wakeup_sum_ns=total.astype(np.int64),
        preempt_sum_ns=none,
        wakeup_max_ns=none,
        preempt_max_ns=none,
        throttled_ns=none,
        throttled_count=none,
        victim=victim[order].astype(np.int64),
        culprit=culprit[order].astype(np.int64),
        wait_ns=ns[order].astype(np.int64),
        wait_count=np.ones(len(ns), dtype=np.int64),
        lost=Lost(),
    )


def evidence_of(waits, ran, stolen, subjects, extra=(), naming=names_of, source="bpf"):
    count = len(waits)
    rows = Rows(np.arange(FIRST, FIRST + count), np.arange(count), count)
    window = window_of(waits, extra)
    waited = rows.sum(rows.of(window.keys), window.sum_ns) / 1e9 / SECONDS
    shares = shares_of(window, rows, waited, ran, stolen)
    owners = {FIRST + row: owner_of(subject) for row, subject in enumerate(subjects)}
    object.__setattr__(window, "source", source)
    return cpu_evidence(
        (window, SECONDS), (window, SECONDS), shares, rows, ran,
        lambda key: owners.get(key) or Owner("system", "some.service"),
        throttled_periods=np.zeros(count), pressure=None, guess=lambda _: (), naming=naming, stolen=stolen,
    )  # fmt: skip


# --- played through

CROWD = 110
THEFTS = {
    "a twentieth, in short pieces": (0.05, 0.003),
    "a twentieth, in long pieces": (0.05, 0.02),
    "two fifths, in short pieces": (0.4, 0.004),
    "two fifths, in long pieces": (0.4, 0.1),
    "two thirds": (0.65, 0.05),
}


@pytest.mark.parametrize(("stolen", "stall"), THEFTS.values(), ids=THEFTS)
@pytest.mark.parametrize("burst", [30e-6, 100e-6])
def test_a_crowd_that_hardly_runs_does_not_hurt_itself(make, stolen, stall, burst):
    """Containers that run for a moment ten times a second, on a CPU that a hypervisor takes away."""
    played = Played([0.1] * CROWD, [burst] * CROWD, stolen=stolen, stall=stall)
    found = played.evidence(make)
    assert found.others.max() < DEFAULT.cpu.min_lost_percent / 100
    waited = played.waits.sum(axis=1)
    told = (found.others + found.own + found.hypervisor) * (waited + played.ran + HARDLY)
    assert told == pytest.approx(waited, abs=1e-8), "nothing is lost on the way"


def test_without_being_told_of_it_the_crowd_would_be_blamed(make):
    """What the test before is about happens at all."""
    played = Played([0.1] * CROWD, [100e-6] * CROWD, stolen=0.4, stall=0.02)
    assert played.evidence(make, told=False).others.min() >= DEFAULT.cpu.lost_percent / 100


@pytest.mark.parametrize("stolen", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_a_hog_is_found_however_much_is_stolen(make, stolen):
    """Container 1 always wants the CPU and keeps it for 4 ms at a time."""
    played = Played([0.01, 0.0, *[0.1] * 20], [0.001, 0.004, *[50e-6] * 20], stolen=stolen, stall=0.01)
    found = played.evidence(make)
    assert found.others[0] >= DEFAULT.cpu.lost_percent / 100
    victim = make.container("c0")
    culprits = blamed(victim, found.culprits(0))
    assert culprits[0].owner.name == "c1"
    assert sum(one.share for one in culprits) <= 1.0
    assert culprits[0].share >= 0.9 * (1.0 - found.hypervisor[0] / (found.hypervisor[0] + found.others[0]))


def test_of_two_hogs_both_are_found(make):
    played = Played([0.01, 0.0, 0.0], [0.001, 0.003, 0.003], stolen=0.2, stall=0.01)
    found = played.evidence(make)
    named = [one.owner.name for one in blamed(make.container("c0"), found.culprits(0))]
    assert sorted(named) == ["c1", "c2"]
    assert found.others[0] >= DEFAULT.cpu.lost_percent / 100


def test_nothing_changes_without_steal(make):
    played = Played([0.01, 0.0, 0.02], [0.001, 0.004, 0.002], stolen=0.0, stall=0.01)
    found = played.evidence(make)
    waited, own = played.waits.sum(axis=1), np.diag(played.waits)
    wanted = waited + played.ran + HARDLY
    assert found.others == pytest.approx((waited - own) / wanted)
    assert found.own == pytest.approx(own / wanted)
    assert not found.hypervisor.any()
    assert all(one.owner.kind != "hypervisor" for row in range(3) for one in found.culprits(row))


# --- worked examples


def test_of_one_who_ran_little_only_what_he_can_have_caused_is_left(make):
    """A second of waiting in three, the CPU away for half the time: 0.3 s of it behind one who had a tenth of a CPU."""
    stolen = Stolen(cores=0.5, busy=0.5, ran=np.array([0.1, 0.1]))
    waits = np.array([[0.0, 0.3], [0.0, 0.0]])
    found = evidence_of(waits, stolen.ran, stolen, [make.container("web"), make.container("batch")])
    wanted = 0.3 + 0.1 + HARDLY
    assert found.others[0] == pytest.approx(0.1), "as much of its time as batch had of a CPU"
    assert found.hypervisor[0] == pytest.approx((0.3 - 0.1 * wanted) / wanted)
    seconds = {one.owner.name: one.seconds for one in found.culprits(0)}
    assert seconds == pytest.approx({"hypervisor": 0.3 - 0.1 * wanted, "batch": 0.1 * wanted})


def test_it_is_never_more_than_was_stolen(make):
    """0.6 s a second behind one who had a fifth of a CPU, but a hundredth of a CPU was stolen."""
    stolen = Stolen(cores=0.01, busy=0.5, ran=np.array([0.1, 0.2]))
    found = evidence_of(np.array([[0.0, 0.6], [0.0, 0.0]]), stolen.ran, stolen, [make.container(n) for n in "ab"])
    assert found.hypervisor[0] == pytest.approx(0.01 / (0.6 + 0.1 + HARDLY))


def test_own_threads_keep_what_was_not_stolen(make):
    stolen = Stolen(cores=0.25, busy=0.75, ran=np.array([0.1]))
    found = evidence_of(np.array([[0.8]]), stolen.ran, stolen, [make.container("web")])
    assert found.parts["threads"][0] == pytest.approx(0.6)
    assert found.hypervisor[0] == pytest.approx(0.2 / (0.8 + 0.1 + HARDLY))


def test_waiting_for_an_idle_cpu_stays_nobodys(make):
    stolen = Stolen(cores=1.0, busy=0.2, ran=np.array([0.1]))
    found = evidence_of(np.zeros((1, 1)), stolen.ran, stolen, [make.container("web")], [(0, SPECIAL_KEYS["idle"], 0.4)])
    assert (found.others[0], found.own[0], found.hypervisor[0]) == (0.0, 0.0, 0.0)
    assert [one.owner.kind for one in found.culprits(0)] == ["idle"]


def test_what_is_no_container_shares_what_no_container_used(make):
    """Two strangers, half and half: of a container's time they keep as much as both had of a CPU."""
    stolen = Stolen(cores=1.0, busy=0.3, ran=np.array([0.2]))
    extra = [(0, SERVICE, 0.2), (0, SPECIAL_KEYS["ksoftirqd"], 0.2)]
    found = evidence_of(np.zeros((1, 1)), stolen.ran, stolen, [make.container("web")], extra)
    assert found.others[0] == pytest.approx(0.1)
    seconds = {one.owner.kind: one.seconds for one in found.culprits(0)}
    theirs = 0.1 * (0.4 + 0.2 + HARDLY) / 2
    assert seconds == pytest.approx({"hypervisor": 0.4 - 2 * theirs, "system": theirs, "kernel": theirs})


def test_where_no_probe_tells_the_whole_node_is_the_neighbour(make):
    stolen = Stolen(cores=0.5, busy=0.5, ran=np.array([0.3]))
    found = evidence_of(np.array([[0.4]]), stolen.ran, stolen, [make.container("web")], source="schedstat")
    assert found.others[0] == pytest.approx(0.2), "as much of its time as others had of the CPUs"
    assert found.own[0] == 0.0
    assert found.hypervisor[0] == pytest.approx(0.4 / (0.4 + 0.3 + HARDLY) - 0.2)


def test_a_verdict_says_what_the_hypervisor_took_and_blames_it_on_nobody(make):
    stolen = Stolen(cores=0.5, busy=1.0, ran=np.array([0.1, 0.9]))
    subjects = (make.container("web"), make.container("batch", qos="BE"))
    found = evidence_of(np.array([[0.0, 0.9], [0.0, 0.0]]), stolen.ran, stolen, subjects)
    (verdict,) = Detector().step(Evidence(subjects, SECONDS, {Resource.CPU: found}), 0.0, DEFAULT).verdicts
    assert [(one.owner.name, round(one.share, 3)) for one in verdict.culprits] == [("batch", 0.667)]
    (said,) = [one for one in verdict.signals if one.name == "lost to the hypervisor"]
    assert said.now == pytest.approx(0.3 / (0.9 + 0.1 + HARDLY))


@pytest.mark.parametrize(
    ("took", "waited", "part"),
    [(None, 0.4, 0.0), (0.04, 0.4, 0.1), (0.04, 2.0, 0.04), (1.0, 0.4, 0.9), (1.0, 0.0, 0.9)],
    ids=["over", "a little now", "of many tasks", "as much", "no waiting"],
)
def test_what_it_took_before_is_not_what_it_takes_now(took, waited, part):
    stolen = None if took is None else Stolen(took, 0.5, np.zeros(1))
    before = Shares(np.zeros(1), np.array([0.05]), np.array([0.4]), np.zeros(1), np.array([0.9]))
    now = bounded(before, np.array([waited]), stolen)
    assert now.hypervisor[0] == pytest.approx(part)
    assert now.others[0] == pytest.approx(0.95 - part), "the rest may be a neighbour's: asked about anew"
    assert bounded(Shares.none(1), np.ones(1), stolen).others[0] == 1.0


# --- what must hold whatever the figures

amounts = st.floats(0.0, 3.0)
cores = st.floats(0.0, 2.0)
stolen_cores = st.floats(1e-3, 2.0)


@given(
    st.lists(st.lists(amounts, min_size=4, max_size=4), min_size=3, max_size=3),
    st.lists(cores, min_size=3, max_size=3),
    stolen_cores,
    cores,
)
def test_laws(waits, ran, took, rest):
    """Three containers and whatever is none."""
    waits, ran = np.array(waits), np.array(ran)
    stolen = Stolen(took, float(ran.sum()) + rest, ran)
    waited = waits.sum(axis=1)
    wanted = wanted_by(waited, ran)
    taken = stolen.taken_from(np.arange(3), waits, wanted)
    left = waits - taken
    assert (taken >= 0.0).all()
    assert (left >= -1e-12).all(), "nobody waits less than not at all"
    limit = took * np.maximum(waited, 1.0)
    assert (taken.sum(axis=1) <= limit * (1 + 1e-9)).all(), "no more than was stolen"
    within = taken.sum(axis=1) < limit * (1 - 1e-6)
    most = np.append(ran, rest)[None, :] * wanted[:, None]
    most[np.arange(3), np.arange(3)] = np.inf
    assert (left <= most + 1e-9)[within].all(), "nobody is blamed for more than he ran"
    assert (left <= waits * (1.0 - stolen.part) + 1e-9)[within].all()


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(1e-3, 1.0))
def test_nobody_waits_for_another_longer_than_he_ran(ran, while_away, took):
    """A task waits for one who has a CPU, while it is there and while it is away."""
    waited = ran + min(took * while_away, 1.0 - ran)
    stolen, waits = Stolen(took, ran, np.array([0.0, ran])), np.array([[0.0, waited, 0.0]])
    taken = stolen.taken_from(np.array([0]), waits, wanted_by(waits.sum(axis=1), np.zeros(1)))
    assert (waits - taken)[0, 1] <= ran * (1.0 + HARDLY) + 1e-9


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), stolen_cores)
def test_parts_of_one_whole(make, behind, own, took):
    ran = np.array([0.3, 0.7])
    stolen = Stolen(took, 1.2, ran)
    found = evidence_of(np.array([[own, behind], [0.0, 0.0]]), ran, stolen, [make.container(n) for n in "ab"])
    assert found.others[0] + found.own[0] + found.hypervisor[0] <= 1.0 + 1e-9
    whole = sum(one.seconds for one in found.culprits(0))
    assert whole == pytest.approx(behind + own, abs=1e-6)
    kept = {one.owner.kind: one.seconds for one in found.culprits(0)}
    assert kept.get(HYPERVISOR.kind, 0.0) == pytest.approx(
        found.hypervisor[0] * (behind + own + ran[0] + HARDLY), abs=1e-6
    )


# --- what the node's counters say


def picture(at, busy, stolen):
    return SimpleNamespace(at=at, node=NodeUse(0, 0, 0, 0, busy_seconds=busy, stolen_seconds=stolen))


def test_steal_counts_for_a_window_and_a_half():
    ticks, ran = NodeTicks(), np.array([0.1])
    found = [ticks.stolen(picture(at, at * 0.5, 0.2 if at >= 2 else 0.0), ran, 2.0) for at in (0.0, 1.0, 2.0, 3.0)]
    assert found[:2] == [None, None]
    assert [(one.cores, one.busy) for one in found[2:]] == [(0.1, 0.5), (pytest.approx(0.2 / 3), 0.5)]
    assert ticks.stolen(picture(4.0, 2.0, 0.2), ran, 2.0).cores == pytest.approx(0.2 / 3)
    assert ticks.stolen(picture(5.0, 2.5, 0.2), ran, 2.0) is None


def test_a_hypervisor_that_takes_next_to_nothing_is_not_looked_at():
    ticks, ran = NodeTicks(), np.array([0.1])
    found = [ticks.stolen(picture(at, at * 0.5, took), ran, 2.0) for at, took in ((0.0, 0.0), (2.0, 0.01), (4.0, 0.05))]
    assert found[:2] == [None, None]
    assert found[2].cores == pytest.approx(0.0125)


def test_counters_that_run_back_start_anew():
    ticks, ran = NodeTicks(), np.array([0.1])
    assert ticks.stolen(picture(0.0, 5.0, 1.0), ran, 2.0) is None
    assert ticks.stolen(picture(1.0, 1.0, 0.5), ran, 2.0) is None
    assert ticks.stolen(picture(2.0, 2.0, 0.75), ran, 2.0).cores == 0.25
    assert ticks.stolen(SimpleNamespace(at=3.0, node=None), ran, 2.0) is None
