"""What is read of the mem_stall tables, without a kernel: nothing while nobody stalls, then who did."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from koordlet.probes import memstall
from koordlet.probes.memstall import KINDS, LIMIT_ENTRY, LIMITS, LOST, STALL_STATS, MemStall, StallLost, diff
from koordlet.probes.schedlatency.layout import BUCKETS, SPECIALS, TAG

SLOTS = 8
DIRECT = KINDS.index("direct")


class Kernel:
    def __init__(self) -> None:
        self.tags, self.lost = np.zeros(SLOTS, dtype=TAG), np.zeros(1, dtype=LOST)
        self.stats, self.limits = np.zeros(SLOTS + SPECIALS, dtype=STALL_STATS), np.zeros(LIMITS, dtype=LIMIT_ENTRY)
        self.tags[:2] = 200, 100


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(memstall, "map_array", lambda fd, name, dtype, entries: getattr(made, name))
    return made


@pytest.fixture
def probe(kernel: Kernel) -> MemStall:
    maps = dict.fromkeys(("tags", "stats", "limits", "lost"), -1)
    attached = SimpleNamespace(maps=maps, reused=False, release_maps=lambda: None)
    return MemStall(attached, (), SLOTS)  # type: ignore[arg-type]


def test_while_nobody_stalls_there_is_nothing_but_what_was_lost(kernel: Kernel, probe: MemStall) -> None:
    kernel.lost["slots"] = 3
    found = probe.read()
    assert (found.source, found.keys.tolist(), found.task.tolist(), found.lost) == ("bpf", [], [], StallLost(slots=3))
    assert found.hist.shape == (0, len(KINDS), BUCKETS)


def test_the_first_stall_counts_from_nothing(kernel: Kernel, probe: MemStall) -> None:
    before = probe.read()
    kernel.stats["kind"]["sum_ns"][1, DIRECT] = 5000
    kernel.stats["kind"]["hist"][1, DIRECT, 2] = 1
    since = diff(before, probe.read())
    assert since.keys.tolist() == [100]
    assert since.sum_ns[0, DIRECT] == 5000
    assert since.hist[0].sum() == since.hist[0, DIRECT, 2] == 1


def test_a_limit_without_a_counted_stall_is_still_told(kernel: Kernel, probe: MemStall) -> None:
    kernel.limits[0] = (900 << 16 | 2, 4, 7000)  # of slot 1
    found = probe.read()
    assert (found.task.tolist(), found.limit.tolist()) == ([100], [900])
    assert (found.limit_ns.tolist(), found.limit_count.tolist()) == ([7000], [4])


def test_pressing_on_the_node_is_no_stall_and_told(kernel: Kernel, probe: MemStall) -> None:
    kernel.stats["wakeups"][0] = 2
    found = probe.read()
    assert (found.keys.tolist(), found.wakeups.tolist()) == ([200], [2])
