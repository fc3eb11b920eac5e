"""mem_stall on swap-in, held to the memory controller's counters, /proc/vmstat and PSI. Run in the guest by name: swap
is the whole machine's.

The kernel calls waiting for swap a stall only where the page was of the working set when it went. So a group's memory
is reclaimed in small parts while it is in use, until its pages count for that, and then by a third without a touch.
"""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.snapshot import KINDS, MemStallSnapshot, diff
from koordlet.system.cgroup.tree import cgroup_id
from tests.koordlet.probes.rows import row_of

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
HELD, LIMIT, SWAP = 24 * MIB, 64 * MIB, 96 * MIB
READAHEAD = Path("/proc/sys/vm/page-cluster")
WANTED = 400
"""Waits for swap at least; a round brings some 3,600."""
LATENCY_NS = 500_000
"""What the disk takes for each request."""

TOUCHES = """
import mmap, os, sys
os.sched_setaffinity(0, {0})
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _ in sys.stdin:
    for i in range(0, len(memory), 4096):
        memory[i] = 1
    print(flush=True)
"""
"""Writes to each of its pages for each line on stdin, and prints a line when done."""


@pytest.fixture(autouse=True)
def swap(tmp_path: Path) -> Iterator[None]:
    """A disk of memory that takes its time for each request, page by page: no page comes with its neighbours."""
    setting = f"nr_devices=1 gb=1 bs=4096 memory_backed=1 irqmode=2 completion_nsec={LATENCY_NS}"
    subprocess.run(["modprobe", "null_blk", *setting.split()], check=True)
    disk = "/dev/nullb0"
    together = READAHEAD.read_text()
    READAHEAD.write_text("0")
    subprocess.run(["mkswap", disk, str(SWAP >> 10)], check=True, capture_output=True)
    subprocess.run(["swapon", disk], check=True)
    yield
    subprocess.run(["swapoff", disk], check=True)
    subprocess.run(["modprobe", "-r", "null_blk"], check=True)
    READAHEAD.write_text(together)


def reclaim(group: Any, size: int) -> None:
    """By us, not by the group: what it feels is coming back alone."""
    try:
        group.write("memory", "memory.reclaim", size)
    except OSError as error:
        if error.errno != errno.EAGAIN:  # less than requested was reclaimed
            raise


def numbers(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def kinds_of(window: MemStallSnapshot, group: Any) -> dict[str, tuple[int, float]]:
    """Kind -> (count, seconds) of those that occurred."""
    row = row_of(window, cgroup_id(group.path("cpu")))
    if row is None:
        return {}
    counts, sums = window.hist[row].sum(axis=1).tolist(), (window.sum_ns[row] / 1e9).tolist()
    return {kind: (counts[i], sums[i]) for i, kind in enumerate(KINDS) if counts[i]}


def test_waiting_for_a_page_from_swap_is_swapin(
    stalls: MemStall,
    cgroup_child: Callable[[str], Any],
    run_in: Callable[..., subprocess.Popen[str]],
    pressure_total: Callable[[Any], float],
) -> None:
    group = cgroup_child("swapped")
    group.write("memory", "memory.max", LIMIT)
    stat, before, node = group.path("memory") / "memory.stat", stalls.read(), numbers(Path("/proc/vmstat"))
    process = run_in(group, TOUCHES, str(HELD))

    def touch() -> None:
        assert process.stdin is not None and process.stdout is not None
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "\n"

    touch()
    for _ in range(4):
        reclaim(group, 2 * MIB)
        touch()
    until = time.monotonic() + 60
    kinds: dict[str, tuple[int, float]] = {}
    while kinds.get("swapin", (0, 0.0))[0] < WANTED and time.monotonic() < until:
        reclaim(group, HELD // 3)
        touch()
        kinds = kinds_of(diff(before, stalls.read()), group)
    stalled = pressure_total(group)
    counters = numbers(stat)
    came = numbers(Path("/proc/vmstat"))["pswpin"] - node["pswpin"]
    assert kinds.keys() == {"swapin"}, "it was never at its limit"
    count, seconds = kinds["swapin"]
    assert counters["workingset_refault_anon"] == pytest.approx(came, rel=0.05), "no other process was swapped out"
    # A task that touches a page of the working set waits for it once, and none waits for less than most of the disk's
    # time.
    assert WANTED <= 0.95 * counters["workingset_restore_anon"] <= count <= counters["workingset_restore_anon"]
    assert seconds >= 0.5 * count * LATENCY_NS / 1e9
    # PSI counts the way into and out of each wait, too: on an emulated CPU a quarter of it all.
    assert 0.5 * stalled <= seconds <= 1.1 * stalled + 0.01, (stalled, seconds)
