"""What only cgroup v2 and a machine of one's own can show of mem_stall: memory.high and swap. Run in the guest by name.

The host has no memory.high, and swap switched on there would be everybody's.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.probes.memstall import KINDS, SLEPT, MemStall, diff
from koordlet.system.cgroup import cgroup_id

pytestmark = pytest.mark.kernel

MIB = 1 << 20
HOLD = """
import os, sys
os.sched_setaffinity(0, {0})
held = bytearray(40 << 20)
for _ in range(int(sys.argv[1])):
    for i in range(0, len(held), 4096):
        held[i] = 1
"""


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """64 MiB on a loop device over a file in memory."""

    def run(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "swap"
    file.write_bytes(bytes(64 * MIB))
    run("modprobe", "loop")
    device = run("losetup", "--find", "--show", str(file))
    run("mkswap", device)
    run("swapon", device)
    yield
    run("swapoff", device)
    run("losetup", "--detach", device)


def seconds(probe: MemStall, before: Any, group: Any) -> dict[str, float]:
    window = diff(before, probe.read())
    row = window.row(cgroup_id(group.path("cpu")))
    return {} if row is None else dict(zip(KINDS, (window.sum_ns[row] / 1e9).tolist(), strict=True))


def test_being_held_back_for_memory_high_is_throttling(
    stalls: MemStall, cgroup_child: Callable[[str], Any], run_in: Any, pressure_total: Callable[[Any], float]
) -> None:
    group = cgroup_child("high")
    group.write("memory", "memory.high", 16 * MIB)
    before = stalls.read()
    process = run_in(group, HOLD, "1")
    until = time.monotonic() + 120
    while seconds(stalls, before, group).get("throttle", 0.0) < 2.0:
        assert time.monotonic() < until, seconds(stalls, before, group)
        time.sleep(0.2)
    process.kill()
    process.wait(60)
    stalled = pressure_total(group)
    found = seconds(stalls, before, group)
    assert found["throttle"] > found["own_limit"]
    assert found["refault"] == found["swapin"] == 0
    assert sum(found.values()) == pytest.approx(stalled, rel=0.1, abs=0.1)


def test_waiting_for_swap_is_told_from_reclaim(
    stalls: MemStall,
    swap: None,
    cgroup_child: Callable[[str], Any],
    run_in: Any,
    pressure_total: Callable[[Any], float],
) -> None:
    group = cgroup_child("swapping")
    group.write("memory", "memory.max", 32 * MIB)
    before = stalls.read()
    assert run_in(group, HOLD, "3").wait(120) == 0
    stalled = pressure_total(group)
    found = seconds(stalls, before, group)
    assert found["own_limit"] > 0
    assert found["swapin"] > 0
    assert sum(found[kind] for kind in SLEPT) == pytest.approx(found["swapin"], rel=0.2)
    # Reading in is counted from where the task goes to sleep; handing the request to the device is before that.
    assert sum(found.values()) == pytest.approx(stalled, rel=0.25, abs=0.1)
