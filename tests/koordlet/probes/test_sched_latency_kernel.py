"""sched_latency on the real kernel, compared with the kernel's own figures (schedstat, cpu.stat).

Both are read while the processes are stopped, so that they speak of the same waits however slow the machine is.
Tolerances: sums within 2 % + 2 ms, numbers of waits within 4 and up to a tenth fewer (where CPUs are contended, Linux
6.18 does not run BPF programs for every event; the time is made up for), throttled time within 10 % + 20 ms of cpu.stat
(which counts while the queue is throttled, we from and to the task's own switches).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.openprobes import ProbeSet
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, diff
from tests.koordlet.probes.opening import loaded_sched_latency
from tests.koordlet.probes.rows import row_of

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MS = 1_000_000
SLEEPER = "while True: time.sleep(0.002)"


@dataclass
class Window:
    """The figures of the probe and of the kernel for the same time."""

    result: SchedLatencySnapshot
    culprits: CulpritMatrix
    kernel: dict[int, Any]
    """pid -> schedstat."""
    throttled_ns: list[int]
    """By cpu.stat, in the order of the groups."""


Measure = Callable[..., Window]


def idle_ticks(cpu: int) -> int:
    """Hundredths of a second that *cpu* has been idle."""
    lines = Path("/proc/stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"cpu{cpu} ")).split()[4])


def until_throttled(group: Any, ns: int = 400 * MS, patience: float = 120.0) -> Callable[[], None]:
    """An action that ends when *group* has been throttled for *ns*; a busy machine takes longer to use a quota up."""

    def wait() -> None:
        start, end = group.throttled_ns(), time.monotonic() + patience
        while group.throttled_ns() < start + ns:
            assert time.monotonic() < end, "the quota did not bite"
            time.sleep(0.05)

    return wait


@pytest.fixture
def until_ran(schedstat: Callable[[int], Any]) -> Callable[..., Callable[[], None]]:
    """``until_ran(pid, …)``: an action that ends when each has had half a second of CPU, however long that takes.

    What happens while processes are stopped and resumed one after the other is little beside it.
    """

    def action(*pids: int) -> Callable[[], None]:
        def wait() -> None:
            goals, end = {pid: schedstat(pid).run_ns + 500 * MS for pid in pids}, time.monotonic() + 120
            while any(schedstat(pid).run_ns < ns for pid, ns in goals.items()):
                assert time.monotonic() < end, "no CPU for two minutes"
                time.sleep(0.05)

        return wait

    return action


@pytest.fixture
def measure(probes: ProbeSet, schedstat: Callable[[int], Any]) -> Measure:
    """``measure(seconds or action, *groups)``: let the groups run that long or during the action."""
    source = loaded_sched_latency(probes)
    assert source is not None

    def run(what: float | Callable[[], object], *groups: Any) -> Window:
        for entry in groups:
            entry.settle()
        pids = [process.pid for entry in groups for process in entry.processes]
        before, matrix = source.read(), source.read_matrix()
        stats = {pid: schedstat(pid) for pid in pids}
        throttled = [entry.throttled_ns() for entry in groups]
        for entry in groups:
            entry.resume()
        time.sleep(what) if isinstance(what, float) else what()
        for entry in reversed(groups):  # a culprit is resumed after its victim, and stopped before it
            entry.settle()
        return Window(
            diff(before, source.read()),
            source.read_matrix().minus(matrix),
            {pid: schedstat(pid) - stats[pid] for pid in pids},
            [entry.throttled_ns() - old for entry, old in zip(groups, throttled, strict=True)],
        )

    return run


def waited(result: SchedLatencySnapshot, key: int) -> int:
    row = row_of(result, key)
    return 0 if row is None else int(result.sum_ns[row])


def counted(result: SchedLatencySnapshot, key: int) -> int:
    row = row_of(result, key)
    return 0 if row is None else int(result.hist[row].sum())


def throttled(result: SchedLatencySnapshot, key: int) -> int:
    row = row_of(result, key)
    return 0 if row is None else int(result.throttled_ns[row])


def charged(matrix: CulpritMatrix, victim: int, culprit: int) -> int:
    return int(matrix.ns[(matrix.victim == victim) & (matrix.culprit == culprit)].sum())


def charged_in_all(matrix: CulpritMatrix, victim: int) -> int:
    return int(matrix.ns[matrix.victim == victim].sum())


def test_noisy_neighbour_is_named_and_the_wait_is_the_kernels(
    measure: Measure, group: Callable[[str], Any], until_ran: Callable[..., Callable[[], None]], clock_error_ns: int
) -> None:
    victim, noisy = group("victim"), group("noisy")
    pid, culprit = victim.run(), noisy.run()
    measured = measure(until_ran(culprit), victim, noisy)
    kernel, neighbour = measured.kernel[pid], measured.kernel[culprit]
    assert kernel.delay_ns > 200 * MS, "the two did not share a CPU"
    slack = 2 * MS + clock_error_ns * kernel.arrivals
    assert waited(measured.result, victim.id) == pytest.approx(kernel.delay_ns, rel=0.02, abs=slack), (
        measured.result.lost
    )
    assert 0.9 * kernel.arrivals - 4 <= counted(measured.result, victim.id) <= kernel.arrivals + 4
    # Both always want the CPU: whenever the neighbour ran, the victim waited for it. Time that the hypervisor or an
    # interrupt stole from the neighbour is charged to it, but is not in its run time.
    # The first part of a wait with more switches than are remembered is counted, but has no named culprit.
    older = charged(measured.culprits, victim.id, SPECIAL_KEYS["older"])
    assert charged(measured.culprits, victim.id, noisy.id) + older >= 0.97 * neighbour.run_ns - 5 * MS
    other_ns = charged_in_all(measured.culprits, victim.id) - charged(measured.culprits, victim.id, noisy.id)
    assert other_ns - older <= kernel.delay_ns - 0.97 * neighbour.run_ns + 5 * MS


@pytest.mark.parametrize("sizes", [1], indirect=True, ids=["one row of counters"])
def test_cpus_that_share_a_row_lose_no_wait(
    measure: Measure, group: Callable[[str], Any], until_ran: Callable[..., Callable[[], None]], clock_error_ns: int
) -> None:
    victim, noisy = group("victim"), group("noisy")
    pids = [victim.run(cpu=cpu) for cpu in (0, 1)]
    measured = measure(until_ran(*[noisy.run(cpu=cpu) for cpu in (0, 1)]), victim, noisy)
    delays, arrivals = (sum(getattr(measured.kernel[pid], name) for pid in pids) for name in ("delay_ns", "arrivals"))
    slack = 4 * MS + clock_error_ns * arrivals
    assert waited(measured.result, victim.id) == pytest.approx(delays, rel=0.02, abs=slack), measured.result.lost
    assert 0.9 * arrivals - 8 <= counted(measured.result, victim.id) <= arrivals + 8


def test_all_waiting_is_charged_to_a_culprit(
    measure: Measure, group: Callable[[str], Any], until_ran: Callable[..., Callable[[], None]]
) -> None:
    groups = [group(f"g{i}") for i in range(3)]
    burners = [entry.run() for entry in groups]
    for entry in groups:
        entry.run(SLEEPER)
    measured = measure(until_ran(*burners), *groups)
    for entry in groups:
        total = charged_in_all(measured.culprits, entry.id)
        assert total == pytest.approx(waited(measured.result, entry.id), abs=MS), measured.result.lost
        assert waited(measured.result, entry.id) > 0
    assert measured.result.lost.matrix_lost_count == measured.result.lost.slot_lost == 0


def test_waiting_for_the_own_group_is_charged_to_it(
    measure: Measure, group: Callable[[str], Any], until_ran: Callable[..., Callable[[], None]]
) -> None:
    alone = group("alone")
    measured = measure(until_ran(alone.run(), alone.run()), alone)
    ran = sum(kernel.run_ns for kernel in measured.kernel.values())
    # Whenever one of the two ran, the other waited for it.
    older = charged(measured.culprits, alone.id, SPECIAL_KEYS["older"])
    assert charged(measured.culprits, alone.id, alone.id) + older >= 0.97 * ran - 5 * MS


def test_quota_throttling_is_not_contention(
    measure: Measure, group: Callable[[str], Any], tells_throttling: bool, clock_error_ns: int
) -> None:
    victim = group("quota")
    pid = victim.run()
    victim.quota(10_000, 100_000)
    for _ in range(4 if clock_error_ns else 1):  # a CPU that stands still between two clocks, once, is no finding
        measured = measure(until_throttled(victim), victim)
        kernel, stat = measured.kernel[pid], measured.throttled_ns[0]
        both = throttled(measured.result, victim.id) + waited(measured.result, victim.id)
        expected = pytest.approx(kernel.delay_ns, rel=0.02, abs=2 * MS + clock_error_ns * kernel.arrivals)
        if both == expected:
            break
    assert both == expected
    if tells_throttling:
        assert throttled(measured.result, victim.id) == pytest.approx(stat, rel=0.1, abs=20 * MS)
    else:
        assert throttled(measured.result, victim.id) == 0


def test_throttled_time_is_not_charged_to_a_neighbour(
    measure: Measure, group: Callable[[str], Any], tells_throttling: bool
) -> None:
    victim, noisy = group("quota"), group("noisy")
    pid = victim.run()
    noisy.run()
    victim.quota(10_000, 100_000)
    measured = measure(until_throttled(victim), victim, noisy)
    kernel, stat = measured.kernel[pid], measured.throttled_ns[0]
    contention = kernel.delay_ns - throttled(measured.result, victim.id)
    assert waited(measured.result, victim.id) == pytest.approx(contention, rel=0.05, abs=5 * MS)
    assert charged(measured.culprits, victim.id, noisy.id) <= waited(measured.result, victim.id) + 2 * MS
    if tells_throttling:
        assert throttled(measured.result, victim.id) == pytest.approx(stat, rel=0.1, abs=20 * MS)


def test_waking_into_a_throttled_group_is_throttling(
    measure: Measure, group: Callable[[str], Any], tells_throttling: bool
) -> None:
    """A sleeper shares its group with a burner that eats the quota: it is woken while the group may not run."""
    victim = group("quota")
    burner, sleeper = victim.run(), victim.run(SLEEPER)
    victim.quota(10_000, 100_000)
    until_throttled(victim, 100 * MS)()  # a first throttling, so that every kernel's baseline is there
    measured = measure(until_throttled(victim), victim)
    delays = [measured.kernel[pid].delay_ns for pid in (burner, sleeper)]
    both = throttled(measured.result, victim.id) + waited(measured.result, victim.id)
    assert both == pytest.approx(sum(delays), rel=0.03, abs=5 * MS)
    if tells_throttling:
        # Throttled nearly as long as the burner, and counted beside it.
        assert 1.5 * measured.throttled_ns[0] < throttled(measured.result, victim.id) < 2.1 * measured.throttled_ns[0]


def test_sleepers_wait_after_wakeups_and_burners_after_preemption(
    measure: Measure,
    group: Callable[[str], Any],
    schedstat: Callable[[int], Any],
    until_arrivals: Callable[[int, int], int],
) -> None:
    sleeper, burner, other = group("sleeper"), group("burner"), group("other")
    pids = sleeper.run(SLEEPER), burner.run(cpu=1)
    other.run(cpu=1)

    def often() -> None:
        for pid in pids:
            until_arrivals(pid, schedstat(pid).arrivals + 60)

    measured = measure(often, sleeper, burner, other)
    s, b = row_of(measured.result, sleeper.id), row_of(measured.result, burner.id)
    assert s is not None and b is not None
    wakeups, preemptions = measured.result.wakeup_hist.sum(axis=1), measured.result.preempt_hist.sum(axis=1)
    assert wakeups[s] > 20 and wakeups[s] > 3 * preemptions[s]
    assert preemptions[b] > 20 and preemptions[b] > 3 * wakeups[b]


def test_a_sleepers_waits_are_the_kernels_and_idle_cpus_are_culprits(
    measure: Measure, group: Callable[[str], Any], clock_error_ns: int
) -> None:
    sleeper = group("sleeper")
    pid = sleeper.run("while True: time.sleep(0.005)")
    named = spent = 0
    for _ in range(10):  # the CPU may be busy with others' work for a while
        start = idle_ticks(cpu=0)
        measured = measure(0.5, sleeper)
        spent += idle_ticks(cpu=0) - start
        kernel = measured.kernel[pid]
        slack = 2 * MS + clock_error_ns * kernel.arrivals
        assert waited(measured.result, sleeper.id) == pytest.approx(kernel.delay_ns, rel=0.02, abs=slack)
        assert 0.9 * kernel.arrivals - 4 <= counted(measured.result, sleeper.id) <= kernel.arrivals + 4
        named += charged(measured.culprits, sleeper.id, SPECIAL_KEYS["idle"])
        if named:
            break
    assert named > 0 or spent < 10, "the CPU idled, but no wait for its wake-up was counted"


def test_kernel_threads_are_culprits_of_their_own(measure: Measure, group: Callable[[str], Any]) -> None:
    """Pulling a running task off a CPU is the migration thread's work; the burner there waits for it."""
    victim, mover = group("victim"), group("mover")
    victim.run(cpu=0)
    mover.run("while True:\n os.sched_setaffinity(0, {0})\n os.sched_setaffinity(0, {1})")
    for _ in range(10):  # a machine may stand still all the while
        measured = measure(0.8, victim, mover)
        if charged(measured.culprits, victim.id, SPECIAL_KEYS["migration"]):
            break
    assert charged(measured.culprits, victim.id, SPECIAL_KEYS["migration"]) > 0


def test_waiting_survives_a_move_to_another_cpu(
    measure: Measure, group: Callable[[str], Any], clock_error_ns: int
) -> None:
    """A waiting task is moved by its affinity again and again; no wait is lost or counted twice.

    bcc reads a clock of its own some way into each switch, here hundreds of very short waits: half as much again is
    allowed there, which still tells a wait that is counted twice.
    """
    moved, noisy = group("moved"), group("noisy")
    pid = moved.run()
    noisy.run(cpu=0)
    noisy.run(cpu=1)

    def push() -> None:
        for _ in range(100):
            for cpu in (1, 0):
                os.sched_setaffinity(pid, {cpu})
                time.sleep(0.003)

    measured = measure(push, moved, noisy)
    rel = 0.5 if clock_error_ns else 0.02
    assert waited(measured.result, moved.id) == pytest.approx(measured.kernel[pid].delay_ns, rel=rel, abs=2 * MS)
    without_culprit = charged(measured.culprits, moved.id, SPECIAL_KEYS["moved"])
    if clock_error_ns:
        assert without_culprit > 0
    else:
        assert without_culprit < 0.1 * charged(measured.culprits, moved.id, noisy.id), "it was preempted, not woken"


def test_a_woken_task_that_is_moved_while_it_waits_has_culprits(
    measure: Measure, group: Callable[[str], Any], clock_error_ns: int
) -> None:
    """A sleeper in a group of low weight waits long after each wake-up, and is moved by its affinity meanwhile.

    A group that waits beside a single other one runs as soon as that has had its slice, whatever the weights.
    """
    moved = group("moved")
    moved.weight(5)
    pid = moved.run("while True:\n for _ in range(2000): pass\n time.sleep(0.002)")
    for name in ("first", "second"):
        noisy = group(name)
        noisy.run(cpu=0)
        noisy.run(cpu=1)

    def push() -> None:
        for _ in range(100):
            for cpu in (1, 0):
                os.sched_setaffinity(pid, {cpu})
                time.sleep(0.004)

    measured = measure(push, moved, noisy)
    total = waited(measured.result, moved.id)
    assert total > 20 * MS, "it did not wait"
    assert charged_in_all(measured.culprits, moved.id) == pytest.approx(total, abs=MS), measured.result.lost
    without_culprit = charged(measured.culprits, moved.id, SPECIAL_KEYS["moved"])
    if clock_error_ns:
        assert without_culprit > 0, "bcc does not know the queue that it left"
    else:
        assert without_culprit < 0.05 * total


def test_the_waiting_times_alone_agree_with_the_snapshots_before_and_after(
    probes: ProbeSet, group: Callable[[str], Any]
) -> None:
    source = loaded_sched_latency(probes)
    assert source is not None
    first_group, second_group = group("first"), group("second")
    for entry in (first_group, second_group):
        entry.run("end = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass", cpu=0)
    for entry in (first_group, second_group):
        assert entry.processes[0].wait(timeout=120) == 0
    before, waits, after = source.read(), source.waits(), source.read()
    for key in before.keys.tolist():
        first, last = row_of(before, key), row_of(after, key)
        row = int(np.searchsorted(waits.keys, key))
        assert waits.keys[row] == key and first is not None and last is not None
        assert before.sum_ns[first] <= waits.waited_ns[row] <= after.sum_ns[last]
        assert before.throttled_ns[first] <= waits.throttled_ns[row] <= after.throttled_ns[last]
    assert row_of(before, first_group.id) is not None
    assert (waits.since(waits).waited_ns == 0).all()


def test_many_short_lived_tasks(probes: ProbeSet, group: Callable[[str], Any]) -> None:
    source = probes.sched_latency
    assert source is not None
    forker = group("forker")
    before = source.read()
    forker.run("for _ in range(300):\n pid = os.fork()\n if not pid: os._exit(0)\n os.waitpid(pid, 0)")
    assert forker.processes[0].wait(timeout=120) == 0
    result = diff(before, source.read())
    assert counted(result, forker.id) >= 300
    assert result.lost.slot_lost == 0


def test_a_group_made_after_loading_is_counted_and_a_dead_one_freed(
    probes: ProbeSet, group: Callable[[str], Any], cgroup_child: Callable[..., Any]
) -> None:
    source = loaded_sched_latency(probes)
    assert source is not None
    entry = group("late")
    entry.run("pass")
    entry.processes[0].wait(timeout=120)
    key = entry.id
    assert row_of(source.read(), key) is not None
    live = frozenset(int(k) for k in source.read().keys if k > 0 and k != key)
    assert source.reclaim(live) == 0, "freed at first suspicion"
    assert source.reclaim(live) >= 1, "and of others on this machine that ended meanwhile"
    assert row_of(source.read(), key) is None
    matrix = source.read_matrix().matrix()
    assert key not in matrix.victim and key not in matrix.culprit
