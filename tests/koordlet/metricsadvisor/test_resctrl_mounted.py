"""The resctrl collector and readers over a mounted file system that refuses what the kernel refuses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.periodic.resctrl import DomainUse, ResctrlCollector
from koordlet.prometheus import Registries
from koordlet.system.kernel import Feature
from koordlet.system.resctrl import read_cbm_mask, read_schemata

pytestmark = pytest.mark.kernel


class Rounds:
    def __init__(self, root: Path) -> None:
        self.now, registries = 0.0, Registries()
        self.conditions = Conditions(registries)
        self.collector = ResctrlCollector(
            root, Feature(True), MetricCache(), registries, self.conditions, clock=lambda: self.now
        )

    def next(self) -> Any:
        self.now += 10
        self.collector.read()
        return self.collector.groups


def test_a_group_through_its_life(mounted_resctrl: Any) -> None:
    tree, rounds = mounted_resctrl, Rounds(mounted_resctrl.root)
    assert rounds.next() == {}
    assert "none of the groups" in rounds.conditions.states["resctrl"].reason
    (tree.root / "BE").mkdir()
    tree.counters("BE", 0, 65536, "Unavailable", "Unavailable")  # what MBM says until it was sampled twice
    assert rounds.next() == {"BE": {0: DomainUse(65536, None, None), 1: DomainUse(0, None, None)}}
    tree.counters("BE", 0, 131072, 1 << 20, 1 << 21)
    assert rounds.next()["BE"] == {0: DomainUse(131072, None, None), 1: DomainUse(0, 0.0, 0.0)}
    tree.counters("BE", 0, 131072, (1 << 20) + 1000, (1 << 21) + 5000)
    assert rounds.next()["BE"][0] == DomainUse(131072, 100.0, 500.0)
    (tree.root / "BE").rmdir()
    (tree.root / "BE").mkdir()
    tree.counters("BE", 0, 4096, 1 << 22, 1 << 23)
    assert rounds.next()["BE"][0] == DomainUse(4096, None, None), "another group of that name, higher counters"
    (tree.root / "BE").rmdir()
    assert rounds.next() == {}


def test_what_a_read_can_answer(mounted_resctrl: Any) -> None:
    tree, rounds = mounted_resctrl, Rounds(mounted_resctrl.root)
    (tree.root / "LS").mkdir()
    (tree.root / "LS/mon_groups/inner").mkdir()
    tree.counters("LS", 0, 1, 10, 20)
    tree.counters("LS", 1, "Error", "Unassigned", 20)
    assert rounds.next()["LS"] == {0: DomainUse(1, None, None), 1: DomainUse(None, None, None)}
    tree.fail("LS/mon_data/mon_L3_00/mbm_total_bytes", errno.ENODEV)
    tree.fail("LS/mon_data/mon_L3_01/llc_occupancy", errno.EIO)
    assert rounds.next()["LS"] == {0: DomainUse(1, 0.0, None), 1: DomainUse(None, None, 0.0)}
    tree.drop("LS/mon_data/mon_L3_01")
    assert set(rounds.next()["LS"]) == {0}


REFUSED = {
    "no newline": ("L3:0=f", errno.EINVAL),
    "a hole in the mask": ("L3:0=505\n", errno.EINVAL),
    "no ways": ("L3:0=0\n", errno.EINVAL),
    "more ways than there are": ("L3:0=fff\n", errno.EINVAL),
    "no such domain": ("L3:7=f\n", errno.EINVAL),
    "no such resource": ("L9:0=f\n", errno.EINVAL),
    "too little bandwidth": ("MB:0=5\n", errno.EINVAL),
}


@pytest.mark.parametrize(("text", "code"), REFUSED.values(), ids=REFUSED)
def test_the_file_system_is_strict(mounted_resctrl: Any, text: str, code: int) -> None:
    with pytest.raises(OSError) as caught:
        (mounted_resctrl.root / "schemata").write_text(text)
    assert caught.value.errno == code


def test_the_file_system_has_the_kernels_rules(mounted_resctrl: Any) -> None:
    root = mounted_resctrl.root
    for refused in (root / "info/x", root / "LS/x"):
        (root / "LS").mkdir(exist_ok=True)
        with pytest.raises(PermissionError):
            refused.mkdir()
        with pytest.raises(PermissionError):
            refused.write_text("x")
    with pytest.raises(ProcessLookupError):
        (root / "LS/tasks").write_text("4194305")
    (root / "LS/schemata").write_text("MB:1=33\nL3:0=3f;1=7c0\n")
    schemata = read_schemata(root / "LS")
    assert schemata is not None
    assert (schemata.l3, schemata.mb) == ({0: 0x3F, 1: 0x7C0}, {0: 100, 1: 40})
    assert read_cbm_mask(root) == 0x7FF
    for name in ("LSR", "BE"):
        (root / name).mkdir()
    with pytest.raises(OSError, match="No space"):
        (root / "one-more").mkdir()
    assert (root / "info/last_cmd_status").read_text() == "Out of CLOSIDs\n"
