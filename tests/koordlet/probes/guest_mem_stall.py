"""What only cgroup v2 can show of mem_stall: memory.high. Run in the guest by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.snapshot import KINDS, diff
from koordlet.system.cgroup.tree import cgroup_id
from tests.koordlet.probes.rows import row_of

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
HOLD = """
import os, sys
os.sched_setaffinity(0, {0})
held = bytearray(40 << 20)
for _ in range(int(sys.argv[1])):
    for i in range(0, len(held), 4096):
        held[i] = 1
"""


def seconds(probe: MemStall, before: Any, group: Any) -> dict[str, float]:
    window = diff(before, probe.read())
    row = row_of(window, cgroup_id(group.path("cpu")))
    return {} if row is None else dict(zip(KINDS, (window.sum_ns[row] / 1e9).tolist(), strict=True))


def test_sleeping_for_memory_high_is_throttling(
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
    stall_seconds = seconds(stalls, before, group)
    assert stall_seconds["throttle"] > stall_seconds["own_limit"]
    assert stall_seconds["refault"] == stall_seconds["swapin"] == 0
    assert sum(stall_seconds.values()) == pytest.approx(stalled, rel=0.1, abs=0.1)
