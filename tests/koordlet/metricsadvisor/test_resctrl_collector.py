"""Cache occupancy and memory bandwidth: rates, wraps, and what a mounted resctrl answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.periodic.resctrl import (
    MAX_BYTES_PER_SECOND,
    WIDTHS,
    DomainUse,
    GroupReading,
    ResctrlCollector,
    counter_delta,
    use,
)
from koordlet.prometheus import Registries
from koordlet.system.kernel import Feature
from koordlet.system.resctrl import MonitoringData
from tests.koordlet.metriccache.lastvalue import last

DELTAS = {
    "counts up": (100, 150, 1.0, 50),
    "stands still": (100, 100, 1.0, 0),
    "24 bits wrap": ((1 << 24) - 10, 5, 1.0, 15),
    "32 bits wrap": ((1 << 32) - 10, 5, 1.0, 15),
    "44 bits wrap": ((1 << 44) - 10, 5, 1.0, 15),
    "62 bits wrap": ((1 << 62) - 10, 5, 1.0, 15),
    "reset in the lower half": (1000, 5, 1.0, None),
    "reset, too far to the top": ((1 << 61) + 7, 5, 1.0, None),
    "more than memory can do": (0, MAX_BYTES_PER_SECOND + 1, 1.0, None),
    "no time passed": (100, 150, 0.0, None),
    "wider than any counter": (1 << 63, 5, 1.0, None),
}


@pytest.mark.parametrize(("old", "new", "seconds", "expected"), DELTAS.values(), ids=DELTAS)
def test_bytes_between_two_readings(old: int, new: int, seconds: float, expected: int | None) -> None:
    assert counter_delta(old, new, seconds) == expected


@given(st.sampled_from(WIDTHS), st.data())
def test_a_wrapped_counter_gives_what_was_counted(width: int, data: st.DataObject) -> None:
    """Any counter of a known width that wraps at most once and slower than the bound, read in its upper half."""
    top = 1 << width
    old = data.draw(st.integers(top // 2, top - 1))
    counted = data.draw(st.integers(0, min(top // 2, MAX_BYTES_PER_SECOND)))
    assert counter_delta(old, (old + counted) % top, 1.0) == counted


@given(st.integers(0, 1 << 63), st.integers(0, 1 << 63), st.floats(-1, 1e6))
def test_no_rate_is_ever_absurd(old: int, new: int, seconds: float) -> None:
    delta = counter_delta(old, new, seconds)
    assert delta is None or 0 <= delta <= MAX_BYTES_PER_SECOND * seconds


def reading(at: float, inode: int, *domains: tuple[int, int | None, int | None, int | None]) -> GroupReading:
    return GroupReading(at, inode, {cache: MonitoringData(*values) for cache, *values in domains})


USES = {
    "rates": (reading(0, 1, (0, 1, 100, 200)), reading(10, 1, (0, 9, 600, 1200)), {0: DomainUse(9, 50, 100)}),
    "first sight": (None, reading(10, 1, (0, 9, 600, 1200)), {0: DomainUse(9, None, None)}),
    "made again": (reading(0, 1, (0, 1, 1, 1)), reading(10, 2, (0, 9, 600, 1200)), {0: DomainUse(9, None, None)}),
    "no answer now": (reading(0, 1, (0, 1, 1, 1)), reading(10, 1, (0, None, None, 11)), {0: DomainUse(None, None, 1)}),
    "no answer before": (reading(0, 1, (0, 1, None, 1)), reading(10, 1, (0, 9, 9, 11)), {0: DomainUse(9, None, 1)}),
    "a new domain": (reading(0, 1), reading(10, 1, (3, 9, 9, 9)), {3: DomainUse(9, None, None)}),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), USES.values(), ids=USES)
def test_use_of_a_group(old: Any, new: Any, expected: Any) -> None:
    assert use(old, new) == expected


class Resctrl:
    """The tree as the kernel writes it, newlines and all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.schemata("    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n")

    def schemata(self, text: str) -> None:
        (self.root / "schemata").write_text(text)

    def group(self, name: str, **domains: tuple[object, object, object]) -> None:
        for domain, values in domains.items():
            base = self.root / name / "mon_data" / domain
            (base / "mon_sub_L3_00").mkdir(parents=True, exist_ok=True)  # Sub-NUMA clusters, kernel 6.11
            for file, value in zip(("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"), values, strict=True):
                (base / file).write_text(f"{value}\n")


@pytest.fixture
def machine(
    tmp_path: Path,
) -> tuple[Resctrl, ResctrlCollector, MetricCache, Registries, CollectorConditions, list[float]]:
    tree, cache, registries, clock = Resctrl(tmp_path / "resctrl"), MetricCache(), Registries(), [100.0]
    registries.node = "n"
    conditions = CollectorConditions(registries)
    collector = ResctrlCollector(tree.root, Feature(True), cache, registries, conditions, clock=lambda: clock[0])
    return tree, collector, cache, registries, conditions, clock


def test_levels_at_once_and_rates_from_the_second_round(machine: Any) -> None:
    tree, collector, cache, registries, conditions, clock = machine
    tree.group("LS", mon_L3_00=(4096, 1000, 2000), mon_L3_01=("Unavailable", "Error", "Unassigned"))
    tree.group("BE", mon_L3_00=(1, 1, 1), mon_NODE_00=("x", "x", "x"))
    collector.read()
    assert collector.groups == {
        "LS": {0: DomainUse(4096, None, None), 1: DomainUse(None, None, None)},
        "BE": {0: DomainUse(1, None, None)},
    }
    clock[0] += 10
    tree.group("LS", mon_L3_00=(8192, 6000, 12000))
    collector.read()
    window = (0.0, 1e9)
    assert last(cache, "resctrl_resource_llc", *window, qos="LS", cache_id="0") == 8192
    assert last(cache, "resctrl_resource_mb", *window, qos="LS", cache_id="0", resctrl_mb_type="mbm_local_bytes") == 500
    assert (
        last(cache, "resctrl_resource_mb", *window, qos="LS", cache_id="0", resctrl_mb_type="mbm_total_bytes") == 1000
    )
    assert last(cache, "resctrl_resource_llc", *window, qos="LS", cache_id="1") is None
    value = registries.external.get_sample_value
    assert value("koordlet_resctrl_llc_occupancy", {"node": "n", "cache_id": "0", "qos": "LS"}) == 8192
    labels = {"node": "n", "cache_id": "0", "qos": "LS", "mb_type": "mbm_total_bytes"}
    assert value("koordlet_resctrl_memory_bandwidth", labels) == 1000
    assert conditions.states["resctrl"].up


def test_a_damaged_group_costs_its_own_figures(machine: Any) -> None:
    tree, collector, _, _, conditions, _ = machine
    tree.group("LS", mon_L3_00=("seven", 1, 1))
    tree.group("BE", mon_L3_00=(7, 1, 1))
    collector.read()
    assert set(collector.groups) == {"BE"}
    assert conditions.states["resctrl"].up


PROBLEMS = {
    "not mounted": (lambda tree: (tree.root / "schemata").unlink(), "not a mounted resctrl"),
    "no bandwidth line": (lambda tree: tree.schemata("L3:0=7ff\n"), "no usable L3 and MB lines"),
    "damaged": (lambda tree: tree.schemata("L3:0=odd\n"), "malformed"),
    "no groups": (lambda tree: None, "none of the groups"),
}


@pytest.mark.parametrize(("spoil", "reason"), PROBLEMS.values(), ids=PROBLEMS)
def test_each_missing_requirement_is_a_condition(machine: Any, spoil: Any, reason: str) -> None:
    tree, collector, _, _, conditions, _ = machine
    spoil(tree)
    collector.read()
    assert reason in conditions.states["resctrl"].reason
    assert collector.groups == {}


def test_a_cpu_that_cannot_monitor_is_a_condition(machine: Any) -> None:
    tree, _, cache, _, _, _ = machine
    registries = Registries()
    conditions = CollectorConditions(registries)
    collector = ResctrlCollector(tree.root, Feature(False, "flags cqm_llc missing"), cache, registries, conditions)
    collector.read()
    assert conditions.states["resctrl"].reason == "flags cqm_llc missing"


def test_figures_of_a_vanished_group_vanish(machine: Any) -> None:
    tree, collector, _, registries, _, clock = machine
    tree.group("LS", mon_L3_00=(1, 1, 1))
    tree.group("BE", mon_L3_00=(1, 1, 1))
    collector.read()
    (tree.root / "LS").rename(tree.root / "elsewhere")
    clock[0] += 10
    collector.read()
    value = registries.external.get_sample_value
    assert value("koordlet_resctrl_llc_occupancy", {"node": "n", "cache_id": "0", "qos": "LS"}) is None
    assert value("koordlet_resctrl_llc_occupancy", {"node": "n", "cache_id": "0", "qos": "BE"}) == 1
