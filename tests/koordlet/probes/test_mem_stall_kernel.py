"""mem_stall and oom on the real kernel, held to PSI, to the counters of the memory controller and to what was killed.

Groups are small, so that a second or two of reclaim is enough; PSI's totals are brought up to date by the kernel every
two seconds, so a reading waits until it stands still.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.probe import load_core as load_mem_stall
from koordlet.probes.memstall.snapshot import KINDS, MemStallSnapshot, diff
from koordlet.probes.oom import Oom
from koordlet.probes.oom import load_core as load_oom
from koordlet.system.cgroup.tree import cgroup_id
from tests.koordlet.probes.rows import row_of

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
EMULATED = "GUEST_OUT" in os.environ
LIMIT = 24 * MIB
CYCLE = """
import mmap, os, sys
os.sched_setaffinity(0, {0})
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _ in range(int(sys.argv[1])):
    for begin in range(0, len(memory), 1 << 20):
        for i in range(begin, begin + (1 << 20), 4096):
            memory[i] = 1
        memory.madvise(mmap.MADV_FREE, begin, 1 << 20)
"""
"""Goes over more memory than its limit and lets go of all behind it: the kernel frees that when it must, and only then.
Needs neither disk nor swap. On one CPU, because PSI weighs the CPUs of a group by how busy they were."""

HOG = """
import os, sys
open("/proc/self/oom_score_adj", "w").write("1000")
held = bytearray(32 << 20)
for i in range(0, len(held), 4096):
    held[i] = 1
print(flush=True)
sys.stdin.read()
"""
"""Holds most of the limit, and is to be killed first."""

ALLOCATOR = "held = bytearray(24 << 20)\nfor i in range(0, len(held), 4096):\n    held[i] = 1\nprint(len(held))"


REREAD = """
import os, sys
os.sched_setaffinity(0, {0})
files = [os.open(sys.argv[1], os.O_RDONLY) for _ in range(4)]
for file in files:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
for _ in range(int(sys.argv[2])):
    for at in range(0, 26 << 20, 4096):
        for file in files:
            os.pread(file, 1, at)
print(*open("/proc/self/schedstat").read().split()[:2])
"""
"""Reads more than its limit holds, page by page, each four times by other hands, so that the kernel takes it for a
working set and remembers what it had to evict. Says for how many nanoseconds it had a CPU, and waited for one."""


def limit(group: Any, size: int) -> None:
    group.write("memory", "memory.max" if (group.path("memory") / "memory.max").exists() else MAX_V1, size)


MAX_V1 = "memory.limit_in_bytes"


def by_kind(window: MemStallSnapshot, key: int) -> dict[str, tuple[int, float]]:
    """Kind -> (count, seconds) of those that occurred."""
    row = row_of(window, key)
    if row is None:
        return {}
    counts, sums = window.hist[row].sum(axis=1).tolist(), (window.sum_ns[row] / 1e9).tolist()
    return {kind: (counts[i], sums[i]) for i, kind in enumerate(KINDS) if sums[i]}


@pytest.mark.parametrize("whose", ["own_limit", "ancestor"])
def test_reclaim_at_a_limit_agrees_with_psi(
    stalls: MemStall,
    cgroup_child: Callable[[str], Any],
    run_in: Callable[..., Any],
    pressure_total: Callable[[Any], float],
    whose: str,
) -> None:
    limited = cgroup_child("limited")
    group = limited if whose == "own_limit" else limited.child("inner")
    limit(limited, LIMIT)
    before = stalls.read()
    reader = run_in(group, CYCLE, "2")
    assert reader.wait(180) == 0
    stalled = pressure_total(group)
    window = diff(before, stalls.read())
    key = cgroup_id(group.path("cpu"))
    kinds = by_kind(window, key)
    count, seconds = kinds[whose]
    assert count >= 32
    assert {"own_limit", "ancestor"} & kinds.keys() == {whose}
    # One task: the time in which some task was stalled is the task's. PSI and the probe read other clocks at each end
    # of a stall; the scheduler's lock and the probe's own work are in PSI's part only, in the guest a tenth of a stall.
    total = sum(second for _, second in kinds.values())
    assert 0.75 * stalled - 0.01 <= total <= 1.1 * stalled + 0.01 + count * 5e-6
    limits = window.limits
    [entry] = np.flatnonzero(limits.victim == key)
    assert limits.culprit[entry] == cgroup_id(limited.path("memory"))
    assert limits.count[entry] == count
    assert limits.ns[entry] == pytest.approx(seconds * 1e9, rel=1e-6)
    # Two rounds of 64 MiB through 24: what doesn't fit had to go each time.
    row = row_of(window, key)
    assert window.limit_pages[row] * os.sysconf("SC_PAGESIZE") >= 2 * (64 * MIB - LIMIT)


def test_the_counters_of_the_memory_controller_agree(
    stalls: MemStall, cgroup_child: Callable[[str], Any], run_in: Callable[..., Any]
) -> None:
    group = cgroup_child("limited")
    limit(group, LIMIT)
    before = stalls.read()
    assert run_in(group, CYCLE, "2").wait(180) == 0
    window = diff(before, stalls.read())
    count, _ = by_kind(window, cgroup_id(group.path("cpu")))["own_limit"]
    memory, pages = group.path("memory"), int(window.limit_pages[row_of(window, cgroup_id(group.path("cpu")))])
    assert pages >= 32 * count // 2, "a reclaim asks for 32 pages and gets most of them"
    if (memory / "memory.failcnt").exists():
        assert count <= int((memory / "memory.failcnt").read_text()), "no reclaim without a charge that failed"
        stat = dict(line.split() for line in (memory / "memory.stat").read_text().splitlines())
        assert pages <= int(stat["pgpgout"]), "what is reclaimed is uncharged"
    else:
        events = dict(line.split() for line in (memory / "memory.events").read_text().splitlines())
        assert count == pytest.approx(int(events["max"]), rel=0.05)
        stat = dict(line.split() for line in (memory / "memory.stat").read_text().splitlines())
        assert pages == pytest.approx(int(stat["pgsteal_direct"]), rel=0.05)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """A loop device with 32 MiB of nothing."""
    if not Path("/dev/loop0").exists():
        subprocess.run(["modprobe", "loop"], check=True)
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(32 * MIB)
    command = ["losetup", "--find", "--show", os.fspath(tmp_path / "disk")]
    loop = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    yield loop
    subprocess.run(["losetup", "--detach", loop], check=True)


def test_reading_evicted_pages_again_is_refault(
    stalls: MemStall,
    cgroup_child: Callable[[str], Any],
    run_in: Callable[..., Any],
    pressure_total: Callable[[Any], float],
    disk: str,
) -> None:
    group = cgroup_child("limited")
    limit(group, LIMIT)
    before = stalls.read()
    stalled, ran, delayed = 0.0, 0.0, 0.0
    kinds: dict[str, tuple[int, float]] = {}
    count, seconds = 0, 0.0
    for _ in range(8 if EMULATED else 40):
        reader = run_in(group, REREAD, disk, "3")
        cpu = [int(ns) / 1e9 for ns in reader.communicate(timeout=240)[0].split()]
        ran, delayed = ran + cpu[0], delayed + cpu[1]
        assert reader.returncode == 0
        stalled = pressure_total(group)
        kinds = by_kind(diff(before, stalls.read()), cgroup_id(group.path("cpu")))
        count, seconds = kinds.get("refault", (0, 0.0))
        if stalled >= 0.2 and count >= 1000:  # in most rounds a kernel may take hardly a page for a working set
            break
    stat = dict(line.split() for line in (group.path("memory") / "memory.stat").read_text().splitlines())
    refaulted = int(stat["workingset_refault_file"])
    assert refaulted >= 5000, "the later rounds find hardly a page"
    # Who reads such a page waits for it once, if the kernel counted it to the working set and it is not there at once.
    assert 1000 <= count <= refaulted
    assert kinds.keys() <= {"refault", "own_limit", "other"}
    # Up to Linux 6.1 a task may sleep while it hands such a read to the disk, and is stalled then, too.
    assert kinds.get("other", (0, 0.0))[0] <= 0.01 * count
    # Short sleeps: PSI counts the way into and out of each of them, too, some 12 us, and waiting for a CPU on it; on an
    # emulated CPU that way is nearly all that the readers ran.
    total = sum(second for _, second in kinds.values())
    way = delayed + (ran if EMULATED else count * 20e-6)
    most = 1.1 * stalled + 0.01 + count * 5e-6
    assert 0.5 * (stalled - way) - 0.01 <= total <= most, (stalled, ran, delayed, total)
    assert seconds > 0


def test_pins_outlive_a_killed_loader(
    place: ProbeEnvironment, cgroup_child: Callable[[str], Any], run_in: Callable[..., Any]
) -> None:
    loader = """
import sys, time
from pathlib import Path
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.probes import oom
from koordlet.probes.memstall import probe as memstall
from koordlet.system.host import Host
from koordlet.system.roots import Roots
place = ProbeEnvironment(Host(Roots.host()), int(sys.argv[2]), Path(sys.argv[1]))
probes = memstall.load_core(place), oom.load_core(place)
print("loaded", flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", loader, os.fspath(place.pins or ""), str(place.cpus)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "loaded\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    group = cgroup_child("unwatched")  # no koordlet runs, the programs keep counting
    limit(group, LIMIT)
    assert run_in(group, CYCLE, "1").wait(180) == 0
    assert run_in(group, ALLOCATOR.replace("24 <<", "64 <<")).wait(180) == -signal.SIGKILL
    stalls, kills = load_mem_stall(place), load_oom(place)
    try:
        assert stalls.reused and kills.reused
        assert "own_limit" in by_kind(stalls.read(), cgroup_id(group.path("cpu")))
        assert [kill.victim_cgroup for kill in kills.read().kills] == [cgroup_id(group.path("cpu"))]
    finally:
        stalls.close(keep=False)
        kills.close(keep=False)


def test_a_kill_names_victim_limit_and_trigger(
    kills: Oom, cgroup_child: Callable[[str], Any], run_in: Callable[..., Any]
) -> None:
    limited = cgroup_child("limited")
    quiet, busy = limited.child("quiet"), limited.child("busy")
    limit(limited, 48 * MIB)
    before = kills.read().total
    hog = run_in(quiet, HOG)
    assert hog.stdout is not None
    assert hog.stdout.readline() == "\n"
    allocator = run_in(busy, ALLOCATOR)
    output, _ = allocator.communicate(timeout=180)
    assert hog.wait(180) == -signal.SIGKILL
    snapshot = kills.read()
    kill, *more = snapshot.since(before)
    # The hog's pages are enough. But the kernel passes a victim over as done a moment before it lets go of the last of
    # its pages: a task that needs memory at that moment is killed as well, and reported.
    ended = (-signal.SIGKILL, "") if more else (0, str(24 << 20))
    assert (allocator.returncode, output.strip()) == ended
    assert [oom_kill.victim_pid for oom_kill in more] == [allocator.pid][: len(more)]
    assert (kill.victim_pid, kill.victim_cgroup) == (hog.pid, cgroup_id(quiet.path("cpu")))
    assert (kill.trigger_pid, kill.trigger_cgroup) == (allocator.pid, cgroup_id(busy.path("cpu")))
    assert (kill.scope, kill.limit_cgroup) == ("limit", cgroup_id(limited.path("memory")))
    assert kill.victim_path == f"{limited.dir}/quiet" and kill.limit_path == limited.dir
    assert kill.limit_pages == 48 * MIB // os.sysconf("SC_PAGESIZE")
    assert kill.usage_pages <= kill.limit_pages
    # Counters of resident pages are kept by CPU and approximate: within a few hundred pages.
    assert 32 * MIB // os.sysconf("SC_PAGESIZE") - 512 <= kill.resident_pages <= kill.limit_pages + 4096
    assert kill.score_adj == 1000
    assert kill.victim_comm == Path(sys.executable).resolve().name[:15] or kill.victim_comm.startswith("python")
    assert abs(time.clock_gettime(time.CLOCK_BOOTTIME) - kill.at) < 120
    row = snapshot.keys.tolist().index(kill.victim_cgroup)
    assert snapshot.killed["limit"][row] == 1
    assert snapshot.triggered[snapshot.keys.tolist().index(kill.trigger_cgroup)] == 1 + len(more)
    events = (quiet.path("memory") / "memory.oom_control").exists()
    file = "memory.oom_control" if events else "memory.events"
    assert "oom_kill 1" in (quiet.path("memory") / file).read_text().splitlines()


def test_slots_of_dead_groups_are_freed(
    stalls: MemStall, cgroup_child: Callable[[str], Any], run_in: Callable[..., Any]
) -> None:
    group = cgroup_child("passing")
    limit(group, LIMIT)
    assert run_in(group, CYCLE, "1").wait(180) == 0
    key = cgroup_id(group.path("cpu"))
    snapshot = stalls.read()
    assert row_of(snapshot, key) is not None and key in snapshot.limits.victim
    live = frozenset(snapshot.keys.tolist()) - {key}
    assert stalls.reclaim(live) == 0, "once may be a mistake"
    assert stalls.reclaim(live) == 1
    after = stalls.read()
    assert row_of(after, key) is None and key not in after.limits.victim
