"""Facts about the node are returned while their collector updates them."""

from __future__ import annotations

import pytest

from koordlet.app.flags import read
from koordlet.options import KoordletOptions
from koordlet.wiring import context as wiring
from koordlet.wiring.context import MAX_MISSED_ROUNDS, MIN_FACT_LIFETIME_S, WiringContext


def test_a_fact_without_updates_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    context, now = WiringContext(read(KoordletOptions, ["--node-name=n1"])), 1000.0
    monkeypatch.setattr(wiring, "boot_clock", lambda: now)
    assert context.fact("layout", 60) is None
    context.cache.facts.set("layout", "four CPUs", now)
    now += MIN_FACT_LIFETIME_S
    assert context.fact("layout", 1) == "four CPUs"
    now += MAX_MISSED_ROUNDS * 60 - MIN_FACT_LIFETIME_S
    assert context.fact("layout", 60) == "four CPUs"
    assert context.fact("layout", 1) is None
    now += 1
    assert context.fact("layout", 60) is None
    context.cache.facts.set("layout", "two CPUs", now)
    assert context.fact("layout", 60) == "two CPUs"
