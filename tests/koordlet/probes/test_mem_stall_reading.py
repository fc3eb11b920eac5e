"""Reading the mem_stall tables without a kernel."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from koordlet.probes.culprits.slots import SPECIALS, TAG
from koordlet.probes.layouts import BUCKETS, LIMIT_ENTRY, STALL_LOST, STALL_STATS
from koordlet.probes.memstall.probe import LIMITS, MemStall
from koordlet.probes.memstall.snapshot import KINDS, StallLosses, diff

SLOTS = 8
DIRECT = KINDS.index("direct")


class Kernel:
    def __init__(self) -> None:
        self.tags, self.lost = np.zeros(SLOTS, dtype=TAG), np.zeros(1, dtype=STALL_LOST)
        self.stats, self.limits = np.zeros(SLOTS + SPECIALS, dtype=STALL_STATS), np.zeros(LIMITS, dtype=LIMIT_ENTRY)
        self.tags[:2] = 200, 100


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(
        "koordlet.probes.loading.mapped.map_array", lambda fd, name, dtype, entries: getattr(kernel, name)
    )
    return kernel


@pytest.fixture
def probe(kernel: Kernel) -> MemStall:
    maps = dict.fromkeys(("tags", "stats", "limits", "lost"), -1)
    attached = SimpleNamespace(maps=maps, reused=False, release_maps=lambda: None)
    return MemStall(attached, (), SLOTS)  # type: ignore[arg-type]


def test_without_a_stall_a_snapshot_has_only_losses(kernel: Kernel, probe: MemStall) -> None:
    kernel.lost["slots"] = 3
    snapshot = probe.read()
    assert (snapshot.source, snapshot.keys.tolist(), snapshot.limits.ns.tolist(), snapshot.lost) == (
        "bpf",
        [],
        [],
        StallLosses(slots=3),
    )
    assert snapshot.hist.shape == (0, len(KINDS), BUCKETS)


def test_the_first_stall_counts_from_nothing(kernel: Kernel, probe: MemStall) -> None:
    before = probe.read()
    kernel.stats["kind"]["sum_ns"][1, DIRECT] = 5000
    kernel.stats["kind"]["hist"][1, DIRECT, 2] = 1
    since = diff(before, probe.read())
    assert since.keys.tolist() == [100]
    assert since.sum_ns[0, DIRECT] == 5000
    assert since.hist[0].sum() == since.hist[0, DIRECT, 2] == 1


def test_a_limit_without_a_counted_stall_is_included(kernel: Kernel, probe: MemStall) -> None:
    kernel.limits[0] = (900 << 16 | 2, 4, 7000)  # of slot 1
    limits = probe.read().limits
    assert (limits.victim.tolist(), limits.culprit.tolist()) == ([100], [900])
    assert (limits.ns.tolist(), limits.count.tolist()) == ([7000], [4])


def test_a_wakeup_of_kswapd_without_a_stall_is_included(kernel: Kernel, probe: MemStall) -> None:
    kernel.stats["wakeups"][0] = 2
    snapshot = probe.read()
    assert (snapshot.keys.tolist(), snapshot.wakeups.tolist()) == ([200], [2])
