"""resctrl (Intel RDT, AMD QoS): schemata text, masks from percentages, monitoring counters (spec 03 §1.7).

Reading and arithmetic only; the resource executor creates and writes groups. Monitoring values may end with a newline,
`Unavailable` and `Error` are None, and directories other than `mon_L3_*` are skipped (the corrections of spec 02
§5.14). Source: Documentation/filesystems/resctrl.rst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.system.cpu.cputopology import CpuInfo
from koordlet.system.errors import InvalidValue, MalformedFile
from koordlet.system.kernel import Feature, read_text

AMD, INTEL = "AuthenticAMD", "GenuineIntel"
AMD_MBA_UNLIMITED = 2048
MONITORING_FLAGS = ("cqm_mbm_total", "cqm_mbm_local", "cqm_llc", "cqm_occup_llc")
_DOMAIN = re.compile(r"^mon_L3_(\d+)$")
_NO_VALUE = ("Unavailable", "Error", "Unassigned")


@dataclass(frozen=True, slots=True)
class Schemata:
    """Cache id -> L3 way mask, and cache id -> memory bandwidth (Intel: percent, AMD: units of 1/8 GB/s)."""

    l3: Mapping[int, int] = field(default_factory=dict)
    mb: Mapping[int, int] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether L3 and MB are both present with positive values: resctrl is mounted and usable."""
        return all(bool(row) and all(value > 0 for value in row.values()) for row in (self.l3, self.mb))


@dataclass(frozen=True, slots=True)
class MonitoringData:
    """Cumulative byte counters and current occupancy of one L3 domain; None where the hardware has no value."""

    llc_occupancy: int | None
    mbm_local_bytes: int | None
    mbm_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class ResctrlFacts:
    """What a mounted resctrl supports, and its groups."""

    vendor: str
    caches: tuple[int, ...]
    """L3 cache ids, ascending; empty without cache allocation."""
    bandwidths: tuple[int, ...]
    """Cache ids of the MB line; empty without bandwidth allocation."""
    cbm: int = 0
    min_bits: int = 1
    sparse: bool = False
    """Whether masks may have holes (AMD; Intel from Granite Rapids on)."""
    groups: tuple[str, ...] = ()


def probe(cpu: CpuInfo) -> Feature:
    """Allocation, by the CPU's flags (spec 03 §1.5)."""
    missing = [flag for flag in ("cat_l3", "mba") if flag not in cpu.flags]
    return Feature.when(not missing, f"CPU flags {', '.join(missing)} missing")


def probe_monitoring(cpu: CpuInfo) -> Feature:
    missing = [flag for flag in MONITORING_FLAGS if flag not in cpu.flags]
    if cpu.vendor not in (INTEL, AMD):
        return Feature(False, f"resctrl monitoring of CPU vendor {cpu.vendor!r} is not supported")
    return Feature.when(not missing, f"CPU flags {', '.join(missing)} missing")


def parse_schemata(text: str, caches: int = -1, path: str = "schemata") -> Schemata:
    """Lines without exactly one `:`, pairs without exactly one `=` and unknown resources (`SMBA`, `L3CODE`) are
    skipped.

    With `caches` >= 0 any other number of cache ids raises MalformedFile.
    """
    rows: dict[str, dict[int, int]] = {"L3": {}, "MB": {}}
    for line in text.splitlines():
        name, *rest = line.strip().split(":")
        if name not in rows or len(rest) != 1:
            continue
        for pair in rest[0].split(";"):
            sides = pair.split("=")
            if len(sides) != 2:
                continue
            try:
                rows[name][int(sides[0])] = int(sides[1], 16 if name == "L3" else 10)
            except ValueError as error:
                raise MalformedFile(path, line, f"{pair!r} is not <cache id>=<value>") from error
        if caches >= 0 and len(rows[name]) != caches:
            raise MalformedFile(path, line, f"expected {caches} cache ids, got {len(rows[name])}")
    return Schemata(rows["L3"], rows["MB"])


def format_l3(masks: Mapping[int, int]) -> str:
    """`L3:0=f;1=f;` and a newline; ids ascend."""
    return "L3:" + "".join(f"{cache}={masks[cache]:x};" for cache in sorted(masks)) + "\n"


def format_mb(values: Mapping[int, int]) -> str:
    return "MB:" + "".join(f"{cache}={values[cache]};" for cache in sorted(values)) + "\n"


def l3_mask(cbm: int, start_percent: int, end_percent: int) -> int:
    """The ways from `start_percent` to `end_percent` of the full mask `cbm`; raises InvalidValue."""
    if cbm <= 0 or cbm & (cbm + 1):
        raise InvalidValue("cbm_mask", hex(cbm), "not a run of ones from bit 0")
    if not 0 <= start_percent < end_percent <= 100:
        raise InvalidValue("L3 percent", f"{start_percent}..{end_percent}", "expected 0 <= start < end <= 100")
    ways = cbm.bit_length()
    first, last = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    return (1 << last) - (1 << first)


def legal_mask(facts: ResctrlFacts, start_percent: int, end_percent: int) -> int:
    """`l3_mask`, widened to the number of ones that the kernel requires when a narrow range rounds to fewer. It grows
    upwards, and downwards at the top of the cache. Raises InvalidValue."""
    mask = l3_mask(facts.cbm, start_percent, end_percent)
    ways = facts.cbm.bit_length()
    bits = min(max(facts.min_bits, 1), ways)
    if mask.bit_count() >= bits:
        return mask
    first = min(-(-ways * start_percent // 100), ways - bits)
    return ((1 << bits) - 1) << first


def check_mask(mask: int, facts: ResctrlFacts) -> None:
    """Raises InvalidValue for a mask that the kernel would refuse, by the rules of its `cbm_validate`."""
    shifted = mask // (mask & -mask) if mask else 0
    if mask <= 0 or mask & ~facts.cbm:
        raise InvalidValue("L3 mask", f"{mask:x}", f"not within {facts.cbm:x}")
    if shifted & (shifted + 1) and not facts.sparse:
        raise InvalidValue("L3 mask", f"{mask:x}", "its ones are not consecutive")
    if (~shifted & (shifted + 1)).bit_length() - 1 < facts.min_bits:
        raise InvalidValue("L3 mask", f"{mask:x}", f"its first run has fewer than {facts.min_bits} ones")


def mba_value(percent: int, vendor: str) -> int:
    """The value of the MB line for `percent`: on Intel percent in tens, rounded up; on AMD units of 1/8 GB/s of 160."""
    if vendor == AMD:
        return AMD_MBA_UNLIMITED if percent == 100 else 160 * percent // 100
    return -(-percent // 10) * 10


def read_schemata(group: Path) -> Schemata | None:
    text = read_text(group / "schemata")
    return None if text is None else parse_schemata(text, path=str(group / "schemata"))


def read_cbm_mask(root: Path) -> int | None:
    """`info/L3/cbm_mask`; None without cache allocation."""
    path = root / "info/L3/cbm_mask"
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text.strip(), 16)
    except ValueError as error:
        raise MalformedFile(path, text, "not a hexadecimal mask") from error


def read_facts(root: Path, vendor: str) -> ResctrlFacts | None:
    """None when resctrl is not mounted at `root` or has neither an L3 nor an MB line."""
    schemata = read_schemata(root)
    if schemata is None or not (schemata.l3 or schemata.mb):
        return None
    cbm = read_cbm_mask(root)
    return ResctrlFacts(
        vendor,
        caches=tuple(sorted(schemata.l3)) if cbm else (),
        bandwidths=tuple(sorted(schemata.mb)),
        cbm=cbm or 0,
        min_bits=_number(root / "info/L3/min_cbm_bits") or 1,
        sparse=_number(root / "info/L3/sparse_masks") == 1,
        groups=tuple(sorted(path.name for path in root.iterdir() if (path / "schemata").is_file())),
    )


def group_identity(group: Path) -> int | None:
    """The inode number of a group's directory: another one means that the group was made again. None without a
    group."""
    try:
        return group.stat().st_ino
    except FileNotFoundError:
        return None


def read_monitoring(group: Path) -> dict[int, MonitoringData] | None:
    """L3 cache id -> counters of a resctrl group; None when it has no `mon_data`."""
    base = group / "mon_data"
    if not base.is_dir():
        return None
    domains = {}
    for path in sorted(base.iterdir()):
        if match := _DOMAIN.match(path.name):
            domains[int(match[1])] = MonitoringData(
                *(_counter(path / name) for name in ("llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"))
            )
    return domains


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.strip().isdecimal() else None


def _counter(path: Path) -> int | None:
    text = read_text(path)
    if text is None or text.strip() in _NO_VALUE:
        return None
    if not text.strip().isdecimal():
        raise MalformedFile(path, text, "expected a counter")
    return int(text)
