"""Readings between two kills are free, and miss no kill."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from koordlet.probes.culprits.slots import SPECIALS
from koordlet.probes.layouts import OOM_COUNTS, OOM_EVENT, OOM_EVENTS
from koordlet.probes.oom import Oom

ENTRIES = {"tags": 8, "counts": 8 + SPECIALS, "events": OOM_EVENTS, "head": 1}


class Kernel:
    """The probe's tables, written as ``bpf/oom.bpf.c`` does: number, counts, event."""

    def __init__(self) -> None:
        types = {"tags": np.dtype("u8"), "counts": OOM_COUNTS, "events": OOM_EVENT, "head": np.dtype("u8")}
        self.tables = {name: np.zeros(ENTRIES[name], dtype=dtype) for name, dtype in types.items()}
        self.tables["tags"][:2] = 100, 101

    def number(self) -> int:
        self.tables["head"][0] += 1
        return int(self.tables["head"][0])

    def count(self, slot: int) -> None:
        self.tables["counts"]["killed_limit"][slot] += 1

    def complete(self, number: int, slot: int) -> None:
        event = self.tables["events"][(number - 1) % OOM_EVENTS]
        event["victim_cgroup"], event["scope"], event["number"] = self.tables["tags"][slot], 1, number

    def kill(self, slot: int = 0) -> None:
        number = self.number()
        self.count(slot)
        self.complete(number, slot)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(
        "koordlet.probes.loading.mapped.map_array", lambda fd, name, dtype, entries: kernel.tables[name]
    )
    return kernel


@pytest.fixture
def probe(kernel: Kernel) -> Oom:
    maps = dict.fromkeys(ENTRIES, -1)
    return Oom(SimpleNamespace(maps=maps, reused=False, release_maps=lambda: None))  # type: ignore[arg-type]


def numbers(probe: Oom) -> list[int]:
    return [kill.number for kill in probe.read().kills]


def killed(probe: Oom) -> dict[int, int]:
    snapshot = probe.read()
    return dict(zip(snapshot.keys.tolist(), snapshot.killed["limit"].tolist(), strict=True))


def test_a_reading_is_returned_again_until_another_kill(kernel: Kernel, probe: Oom) -> None:
    kernel.kill()
    first = probe.read()
    assert probe.read() is first
    kernel.kill(slot=1)
    assert numbers(probe) == [1, 2]
    assert killed(probe) == {100: 1, 101: 1}


def test_a_reading_is_not_kept_while_a_kill_is_incomplete(kernel: Kernel, probe: Oom) -> None:
    kernel.kill()
    number = kernel.number()
    assert numbers(probe) == [1]
    kernel.count(1)
    assert killed(probe) == {100: 1, 101: 1}
    kernel.complete(number, 1)
    assert numbers(probe) == [1, 2]


def test_a_reading_is_not_kept_while_a_full_ring_has_an_older_kill(kernel: Kernel, probe: Oom) -> None:
    for _ in range(OOM_EVENTS):
        kernel.kill()
    number = kernel.number()
    assert numbers(probe) == list(range(1, OOM_EVENTS + 1))
    kernel.count(0)
    kernel.complete(number, 0)
    assert numbers(probe) == list(range(2, OOM_EVENTS + 2))


def test_of_two_kills_at_once_the_later_may_be_complete_first(kernel: Kernel, probe: Oom) -> None:
    earlier, later = kernel.number(), kernel.number()
    kernel.count(1)
    kernel.complete(later, 1)
    assert numbers(probe) == [later]
    kernel.count(0)
    kernel.complete(earlier, 0)
    assert numbers(probe) == [earlier, later]
    assert killed(probe) == {100: 1, 101: 1}


def test_a_dead_cgroup_is_no_longer_counted(kernel: Kernel, probe: Oom) -> None:
    kernel.kill()
    kernel.kill(slot=1)
    assert killed(probe) == {100: 1, 101: 1}
    assert probe.reclaim({101}) == 0
    assert probe.reclaim({101}) == 1
    assert killed(probe) == {101: 1}
