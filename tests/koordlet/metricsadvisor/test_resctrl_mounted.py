"""The resctrl collector and readers over a mounted file system that refuses what the kernel refuses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.periodic.resctrl import DomainUse, ResctrlCollector
from koordlet.prometheus import Registries
from koordlet.system.kernel import Feature
from koordlet.system.resctrl import read_cbm_mask, read_schemata

pytestmark = pytest.mark.kernel


class Rounds:
    def __init__(self, root: Path) -> None:
        self.now, registries = 0.0, Registries()
        self.conditions = CollectorConditions(registries)
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
    tree.counters("BE", 0, 65536, "Unavailable", "Unavailable")  # the value of MBM until it was sampled twice
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


def test_values_of_a_monitoring_file(mounted_resctrl: Any) -> None:
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
    "no newline": "L3:0=f",
    "more ways than there are": "L3:0=1ffff\n",
    "no such domain": "L3:7=f\n",
    "no such resource": "L9:0=f\n",
    "not a number": "MB:0=x\n",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_the_emulated_file_system_refuses_invalid_values(mounted_resctrl: Any, text: str) -> None:
    with pytest.raises(OSError) as caught:
        (mounted_resctrl.root / "schemata").write_text(text)
    assert caught.value.errno == errno.EINVAL


ACCEPTED_BY = {
    "a hole in the mask": ("L3:0=505\n", {"amd"}),
    "an empty mask": ("L3:0=0\n", {"amd"}),
    "16 ways": ("L3:0=ffff\n", {"amd"}),
    "less than ten percent": ("MB:0=5\n", {"amd"}),
    "more than a hundred percent": ("MB:0=101\n", {"amd"}),
    "more than unlimited": ("MB:0=2049\n", set()),
    "slow memory": ("SMBA:0=64\n", {"amd"}),
    "eleven ways": ("L3:0=7ff\n", {"amd", "intel"}),
    "half of the bandwidth": ("MB:0=50\n", {"amd", "intel"}),
}


@pytest.mark.parametrize(("text", "vendors"), ACCEPTED_BY.values(), ids=ACCEPTED_BY)
def test_the_file_system_has_the_rules_of_each_vendor(mounted_resctrl: Any, text: str, vendors: set[str]) -> None:
    try:
        (mounted_resctrl.root / "schemata").write_text(text)
        accepted = True
    except OSError as error:
        assert error.errno == errno.EINVAL
        accepted = False
    assert accepted == (mounted_resctrl.vendor in vendors)


INFO = {
    "intel": {
        "L3": {"cbm_mask": "7ff", "min_cbm_bits": "1", "num_closids": "4", "shareable_bits": "600",
               "sparse_masks": "0"},
        "MB": {"bandwidth_gran": "10", "delay_linear": "1", "min_bandwidth": "10", "num_closids": "4",
               "thread_throttle_mode": "max"},
        "L3_MON": {"max_threshold_occupancy": "65536", "num_rmids": "8",
                   "mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes"},
    },
    "amd": {
        "L3": {"cbm_mask": "ffff", "min_cbm_bits": "0", "num_closids": "4", "shareable_bits": "0",
               "sparse_masks": "1"},
        "MB": {"bandwidth_gran": "1", "delay_linear": "0", "min_bandwidth": "0", "num_closids": "4"},
        "SMBA": {"bandwidth_gran": "1", "delay_linear": "0", "min_bandwidth": "0", "num_closids": "4"},
        "L3_MON": {"max_threshold_occupancy": "65536", "num_rmids": "8",
                   "mbm_local_bytes_config": "0=0x15;1=0x15", "mbm_total_bytes_config": "0=0x7f;1=0x7f",
                   "mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\n"
                                   "mbm_local_bytes\nmbm_local_bytes_config"},
    },
}  # fmt: skip
SCHEMATA = {
    "intel": "    MB:0=100;1= 40\n    L3:0=03f;1=7c0\n",
    "amd": "  SMBA:0=2048;1=2048\n    MB:0=2048;1=  33\n    L3:0=003f;1=07c0\n",
}


def test_info_has_the_files_of_the_vendors_driver(mounted_resctrl: Any) -> None:
    info = mounted_resctrl.root / "info"
    files = {
        directory.name: {path.name: path.read_text().removesuffix("\n") for path in directory.iterdir()}
        for directory in info.iterdir()
        if directory.is_dir()
    }
    assert files == INFO[mounted_resctrl.vendor]


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
    assert (root / "LS/schemata").read_text() == SCHEMATA[mounted_resctrl.vendor]
    bandwidth = {"intel": 40, "amd": 33}[mounted_resctrl.vendor]
    schemata = read_schemata(root / "LS")
    assert schemata is not None
    assert schemata.l3 == {0: 0x3F, 1: 0x7C0}
    assert schemata.mb == {0: mounted_resctrl.max_bandwidth, 1: bandwidth}
    assert read_cbm_mask(root) == mounted_resctrl.cbm_mask
    for name in ("LSR", "BE"):
        (root / name).mkdir()
    with pytest.raises(OSError, match="No space"):
        (root / "one-more").mkdir()
    assert (root / "info/last_cmd_status").read_text() == "Out of CLOSIDs\n"
