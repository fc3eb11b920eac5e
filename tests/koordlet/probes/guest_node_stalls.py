"""mem_stall when the whole node is short of memory and when its memory is in pieces, held to /proc/vmstat, to the
kernel's own trace and to PSI. Run in the guest by name: a machine that others use would feel it.

Most of the memory is put aside as huge pages, so that little is left to fill. kswapd may only run when no other task
wants the CPU on which the groups allocate: so they reclaim by themselves.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.metricsadvisor.stalls.memstall import by_subject
from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.snapshot import KINDS, NODE, MemStallSnapshot, diff
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.cgroup.tree import cgroup_id
from tests.koordlet.probes.rows import row_of

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

KIB, MIB = 1 << 10, 1 << 20
LEFT, RESERVE, WHOLE, HUGE = 192 * MIB, 16 * MIB, 40 * MIB, 2 * MIB
"""Memory that is not put aside; what the kernel keeps for itself of it; how much of that stays in one piece."""
MCL_CURRENT = 1
VM, THP, TRACING = Path("/proc/sys/vm"), Path("/sys/kernel/mm/transparent_hugepage"), Path("/sys/kernel/tracing")
DIRECT, COMPACTION = KINDS.index("direct"), KINDS.index("compaction")

PRESSES = """
import mmap, os, sys
os.sched_setaffinity(0, {0})
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
while True:
    for begin in range(0, len(memory), 1 << 20):
        for i in range(begin, begin + (1 << 20), 4096):
            memory[i] = 1
        memory.madvise(mmap.MADV_FREE, begin, 1 << 20)
"""
"""Goes over more memory than there is and lets go of all behind it: the kernel frees that when it must."""

SUFFERS = """
import mmap, os, time
os.sched_setaffinity(0, {0})
while True:
    with mmap.mmap(-1, 1 << 18, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for i in range(0, 1 << 18, 4096):
            memory[i] = 1
    time.sleep(0.05)
"""
"""Wants a little now and then."""

PIECES = """
import mmap, os, sys
os.sched_setaffinity(0, {0})
size, huge_size = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for i in range(0, size, 4096):
    memory[i] = 1
for i in range(0, size, 8192):
    memory.madvise(mmap.MADV_DONTNEED, i, 4096)
print("in pieces", flush=True)
sys.stdin.readline()
pages = mmap.mmap(-1, huge_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages.madvise(mmap.MADV_HUGEPAGE)
for i in range(0, huge_size, 2 << 20):
    pages[i] = 1
print("huge", flush=True)
sys.stdin.readline()
open("/proc/sys/vm/compact_memory", "w").write("1")
print("done", flush=True)
sys.stdin.readline()
"""
"""Takes nearly all memory, gives every second page back, and then wants huge ones. At last it has all memory moved
together through /proc."""


def meminfo(name: str) -> int:
    """Bytes."""
    line = re.search(rf"^{name}: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    assert line is not None, name
    return int(line[1]) * KIB


def vmstat() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    counters = {name: int(value) for name, value in lines}
    return counters | {"allocstall": sum(value for name, value in counters.items() if name.startswith("allocstall"))}


def chosen(path: Path) -> str:
    """`always [madvise] never` -> `madvise`, and a number as it is."""
    text = path.read_text().strip()
    word = re.search(r"\[(\w+\+?\w*)\]", text)
    return word[1] if word else text


@pytest.fixture(scope="module", autouse=True)
def locked_memory() -> Iterator[None]:
    """This process stays in memory: the guest would read each page of its code again through 9p."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mlockall(MCL_CURRENT) == 0, os.strerror(ctypes.get_errno())
    yield
    libc.munlockall()


@pytest.fixture(scope="module", autouse=True)
def little_memory(locked_memory: None) -> Iterator[None]:
    """All but `LEFT` is put aside; huge pages for a process that touches enough; everything is restored at the end."""
    files = (
        THP / "enabled",
        THP / "defrag",
        VM / "min_free_kbytes",
        VM / "nr_hugepages",
    )  # the first changes the third
    before = [chosen(file) for file in files]
    try:
        (VM / "drop_caches").write_text("3")
        (VM / "compact_memory").write_text("1")  # earlier tests left it in pieces
        (VM / "nr_hugepages").write_text(str((meminfo("MemFree") - LEFT) // HUGE))
        assert meminfo("MemFree") < 4 * LEFT, "the kernel did not put memory aside"  # in pieces, it gets fewer
        for file, value in zip(files[:3], ("always", "always", str(RESERVE // KIB)), strict=True):
            file.write_text(value)
        yield
    finally:
        for file, value in zip(files, before, strict=True):
            file.write_text(value)
    assert [chosen(file) for file in files] == before


@pytest.fixture
def late_kswapd() -> Iterator[None]:
    comms = [path for path in Path("/proc").glob("[0-9]*/comm") if path.read_text().startswith("kswapd")]
    masks = {int(path.parent.name): os.sched_getaffinity(int(path.parent.name)) for path in comms}
    assert masks
    try:
        for pid in masks:
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(pid, {0})
        yield
    finally:
        for pid, mask in masks.items():
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(pid, mask)


BEGINS = {"mm_vmscan_direct_reclaim_begin": DIRECT, "mm_compaction_begin": COMPACTION}
ENDS = {"mm_vmscan_direct_reclaim_end": DIRECT, "mm_compaction_end": COMPACTION}
LINE = re.compile(r"-(\d+) +\[\d+\].*? (\d+\.\d+): (mm_\w+):")
Stalls = tuple[int, float]
"""How many, and their seconds."""
Traced = Callable[[int], dict[int, Stalls]]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """``traced(pid)``: by kind, from the time stamps of the kernel's trace."""
    mounted = not (TRACING / "instances").exists()
    if mounted:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", os.fspath(TRACING)], check=True)
    instance = TRACING / "instances" / "koordlet-test"
    instance.mkdir()
    switches = [
        instance / "events" / ("compaction" if "compaction" in name else "vmscan") / name / "enable"
        for name in (*BEGINS, *ENDS)
    ]

    def read(pid: int) -> dict[int, Stalls]:
        began: dict[int, float] = {}
        stalls = {DIRECT: (0, 0.0), COMPACTION: (0, 0.0)}
        for pid_text, at, name in LINE.findall((instance / "trace").read_text()):
            if int(pid_text) != pid:
                continue
            if name in BEGINS:
                began[BEGINS[name]] = float(at)
            elif ENDS[name] in began:
                count, seconds = stalls[ENDS[name]]
                stalls[ENDS[name]] = count + 1, seconds + float(at) - began.pop(ENDS[name])
        return stalls

    try:
        (instance / "buffer_size_kb").write_text("4096")
        (instance / "trace_clock").write_text("mono")
        for switch in switches:
            switch.write_text("1")
        yield read
    finally:
        for switch in switches:
            switch.write_text("0")
        instance.rmdir()
        if mounted:
            subprocess.run(["umount", os.fspath(TRACING)], check=True)


def key(group: Any) -> int:
    return cgroup_id(group.path("cpu"))


def of(window: MemStallSnapshot, group: Any) -> dict[str, Stalls]:
    """By kind, those that occurred."""
    row = row_of(window, key(group))
    if row is None:
        return {}
    counts, sums = window.hist[row].sum(axis=1).tolist(), (window.sum_ns[row] / 1e9).tolist()
    return {kind: (counts[i], sums[i]) for i, kind in enumerate(KINDS) if counts[i]}


def grew(before: dict[str, int], name: str) -> int:
    return vmstat()[name] - before[name]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(60)


def same(stalls: Stalls, kernel: Stalls) -> bool:
    """Each stall in both, and their time: an emulated CPU may stand still between two readers of one tracepoint."""
    return stalls[0] == kernel[0] and abs(stalls[1] - kernel[1]) <= 0.1 * kernel[1] + 0.05 + 2e-3 * kernel[0]


def test_direct_reclaim_of_a_short_node_is_each_groups_own_and_the_presser_is_named(
    late_kswapd: None,
    stalls: MemStall,
    cgroup_child: Callable[[str], Any],
    run_in: Callable[..., Any],
    pressure_total: Callable[[Any], float],
    traced: Traced,
) -> None:
    groups = {name: cgroup_child(name) for name in ("presser", "victim")}
    kernel, before = vmstat(), stalls.read()
    processes = {
        "presser": run_in(groups["presser"], PRESSES, str((meminfo("MemAvailable") + 96 * MIB) // MIB * MIB)),
        "victim": run_in(groups["victim"], SUFFERS),
    }
    until = time.monotonic() + 120
    minimum_counts = {"presser": 200, "victim": 15}
    while True:
        window = diff(before, stalls.read())
        counts = {name: of(window, group).get("direct", (0, 0.0))[0] for name, group in groups.items()}
        if all(counts[name] >= least for name, least in minimum_counts.items()):
            break
        assert time.monotonic() < until and all(process.poll() is None for process in processes.values()), counts
        time.sleep(0.2)
    for process in processes.values():
        end(process)
    stalled = {name: pressure_total(group) for name, group in groups.items()}
    window = diff(before, stalls.read())
    allocstall, pages = grew(kernel, "allocstall"), grew(kernel, "pgsteal_direct")
    for name, group in groups.items():
        kinds = of(window, group)
        assert not kinds.keys() & {"own_limit", "ancestor", "throttle", "swapin"}, "no limit was set"
        count, seconds = kinds["direct"]
        assert same((count, seconds), traced(processes[name].pid)[DIRECT]), (name, kinds)
        # PSI goes on until the page is there: cleared, and the lists of the CPUs drained where reclaim was in vain.
        total = sum(second for _, second in kinds.values())
        least, most = 0.6 * stalled[name] - 0.05 - count * 2e-3, 1.1 * stalled[name] + 0.05 + count * 5e-6
        assert least <= total <= most, (name, kinds, stalled)
        limits = window.limits
        [entry] = [i for i, task in enumerate(limits.victim.tolist()) if task == key(group) and limits.count[i]]
        assert (limits.culprit[entry], limits.count[entry]) == (NODE, count)
        assert limits.ns[entry] == pytest.approx(seconds * 1e9, rel=1e-6)
    # All of the node's, of any task. The kernel counts again when it retries with less protection.
    assert 0.95 * allocstall - 3 <= int(window.hist[:, DIRECT].sum()) <= allocstall + 3
    assert int(window.direct_pages.sum()) == pytest.approx(pages, rel=0.05, abs=200)

    subjects = {
        key(group): Subject(SubjectKind.CONTAINER, name, group.dir, name, pod_uid=name)
        for name, group in groups.items()
    }

    def owner(cgroup: int) -> Owner:
        return owner_of(subjects[cgroup]) if cgroup in subjects else Owner("system", "")

    figures = by_subject(window, 1.0, owner, lambda _: Owner("gone", ""))
    assert figures.keys() == groups.keys()
    assert [culprit.owner.name for culprit in figures["victim"].culprits][:1] == ["presser"]
    assert not figures["victim"].seconds.keys() & {"own_limit", "throttle"}


def test_compaction_is_separate_from_the_reclaim_around_it(
    stalls: MemStall,
    cgroup_child: Callable[[str], Any],
    run_in: Callable[..., Any],
    pressure_total: Callable[[Any], float],
    traced: Traced,
) -> None:
    group = cgroup_child("pieces")
    process = run_in(group, PIECES, str((meminfo("MemFree") - WHOLE) // HUGE * HUGE), str(WHOLE + LEFT // 2))
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "in pieces\n"
    stalled = pressure_total(group)
    kernel, before, earlier = vmstat(), stalls.read(), traced(process.pid)
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "huge\n"
    window = diff(before, stalls.read())
    stall, success, fail = (grew(kernel, f"compact_{name}") for name in ("stall", "success", "fail"))
    stalled = pressure_total(group) - stalled
    kinds = of(window, group)
    trace = {kind: (n - earlier[kind][0], s - earlier[kind][1]) for kind, (n, s) in traced(process.pid).items()}
    assert not kinds.keys() & {"own_limit", "ancestor", "throttle", "swapin"}
    assert kinds["compaction"][0] >= 2, (kinds, stall, success, fail)
    assert same(kinds["compaction"], trace[COMPACTION]), (kinds, trace)
    assert same(kinds.get("direct", (0, 0.0)), trace[DIRECT]), (kinds, trace)
    # Once for each zone; the small one is kept for devices. The kernel also counts when it only put it off.
    assert success - 2 <= int(window.hist[:, COMPACTION].sum()) <= stall + 2
    assert stall == pytest.approx(success + fail, abs=2)
    # No second is in two kinds. PSI goes on until the huge page is there, cleared: on an emulated CPU most of it.
    assert sum(second for _, second in kinds.values()) <= 1.1 * stalled + 0.05

    before, kernel = stalls.read(), vmstat()
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "done\n"
    assert grew(kernel, "compact_migrate_scanned") > 0
    assert "compaction" not in of(diff(before, stalls.read()), group), "it waited for no memory"
