from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system import resctrl
from koordlet.system.cpu.cputopology import CpuInfo
from koordlet.system.errors import InvalidValue, MalformedFile
from koordlet.system.resctrl import AMD, INTEL, MonitoringData, Schemata


@pytest.mark.parametrize(
    ("cbm", "start", "end", "mask"),
    [
        (0xFF, 0, 100, 0xFF), (0x3FF, 10, 80, 0xFE), (0x7FF, 10, 50, 0x3C), (0x3FF, 0, 30, 0x7),
        (0x7FF, 0, 30, 0xF), (0x3FF, 10, 85, 0x1FE),
    ],
)  # fmt: skip
def test_mask_from_percent(cbm: int, start: int, end: int, mask: int) -> None:
    assert resctrl.l3_mask(cbm, start, end) == mask


@pytest.mark.parametrize(
    ("cbm", "start", "end"), [(0x101, 0, 100), (4, 0, 100), (0, 0, 100), (0xFF, 5, 5), (0xFF, -1, 5), (0xFF, 0, 101)]
)
def test_impossible_masks(cbm: int, start: int, end: int) -> None:
    with pytest.raises(InvalidValue):
        resctrl.l3_mask(cbm, start, end)


@pytest.mark.parametrize(
    ("percent", "vendor", "value"),
    [
        (85, INTEL, 90), (91, INTEL, 100), (90, INTEL, 90), (33, "", 40),
        (100, AMD, 2048), (80, AMD, 128), (65, AMD, 104), (33, AMD, 52),
    ],
)  # fmt: skip
def test_bandwidth_from_percent(percent: int, vendor: str, value: int) -> None:
    assert resctrl.mba_value(percent, vendor) == value


def test_schemata_of_a_real_file() -> None:
    text = "    MB:0=100;1= 90\n    L3:0=7ff;1=7ff\nL3CODE:0=1\nodd\nMB:a:b\n"
    assert resctrl.parse_schemata(text) == Schemata({0: 0x7FF, 1: 0x7FF}, {0: 100, 1: 90})
    assert resctrl.parse_schemata(text).valid


def test_formats() -> None:
    assert resctrl.format_l3({1: 0xF, 0: 0xFF}) == "L3:0=ff;1=f;\n"
    assert resctrl.format_mb({1: 90, 0: 100}) == "MB:0=100;1=90;\n"


@pytest.mark.parametrize("text", ["L3:0=f\n", "MB:0=1\n", "L3:0=0\nMB:0=1\n", ""])
def test_unusable_schemata(text: str) -> None:
    assert not resctrl.parse_schemata(text).valid


@pytest.mark.parametrize(("text", "caches"), [("L3:0=f;1=f\n", 1), ("L3:0=xyz\n", -1), ("MB:a=1\n", -1)])
def test_damaged_schemata(text: str, caches: int) -> None:
    with pytest.raises(MalformedFile):
        resctrl.parse_schemata(text, caches)


def test_monitoring_reads_what_kernels_write(tmp_path: Path) -> None:
    base = tmp_path / "mon_data"
    for name, values in {"mon_L3_00": ("4096\n", "1\n", "2\n"), "mon_L3_01": ("Unavailable\n", "Error\n", None),
                         "mon_sub_L3_00": ("x", "x", "x")}.items():  # fmt: skip
        (base / name).mkdir(parents=True)
        for file, text in zip(("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"), values, strict=True):
            if text is not None:
                (base / name / file).write_text(text)
    assert resctrl.read_monitoring(tmp_path) == {0: MonitoringData(4096, 1, 2), 1: MonitoringData(None, None, None)}
    assert resctrl.read_monitoring(tmp_path / "none") is None
    (base / "mon_L3_00/llc_occupancy").write_text("odd\n")
    with pytest.raises(MalformedFile, match="llc_occupancy"):
        resctrl.read_monitoring(tmp_path)


def test_cbm_mask(tmp_path: Path) -> None:
    assert resctrl.read_cbm_mask(tmp_path) is None
    assert resctrl.read_schemata(tmp_path) is None
    (tmp_path / "info/L3").mkdir(parents=True)
    (tmp_path / "info/L3/cbm_mask").write_text("7ff\n")
    assert resctrl.read_cbm_mask(tmp_path) == 0x7FF


@pytest.mark.parametrize(
    ("vendor", "flags", "control", "monitoring"),
    [
        (INTEL, {"cat_l3", "mba"}, True, False),
        (INTEL, {"cat_l3"}, False, False),
        (AMD, {"cqm_mbm_total", "cqm_mbm_local", "cqm_llc", "cqm_occup_llc"}, False, True),
        ("", {"cqm_mbm_total", "cqm_mbm_local", "cqm_llc", "cqm_occup_llc"}, False, False),
    ],
)
def test_probe(vendor: str, flags: set[str], control: bool, monitoring: bool) -> None:
    cpu = CpuInfo("x", vendor, frozenset(flags))
    assert bool(resctrl.probe(cpu)) is control
    assert bool(resctrl.probe_monitoring(cpu)) is monitoring


@given(st.integers(1, 32), st.integers(0, 100), st.integers(0, 100))
def test_masks_are_runs_within_the_cache(ways: int, start: int, end: int) -> None:
    cbm = (1 << ways) - 1
    if start >= end:
        with pytest.raises(InvalidValue):
            resctrl.l3_mask(cbm, start, end)
        return
    mask = resctrl.l3_mask(cbm, start, end)
    assert mask & ~cbm == 0
    low = mask & -mask
    assert mask == 0 or (mask // low) & (mask // low + 1) == 0


@given(
    st.dictionaries(st.integers(0, 64), st.integers(1, 2**32)),
    st.dictionaries(st.integers(0, 64), st.integers(1, 4096)),
)
def test_parse_after_format(l3: dict[int, int], mb: dict[int, int]) -> None:
    assert resctrl.parse_schemata(resctrl.format_l3(l3) + resctrl.format_mb(mb)) == Schemata(l3, mb)
