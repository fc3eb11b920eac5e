"""kidled: page ages on Anolis/Alibaba kernels, cgroup v1 only (spec 03 §1.11, 02 §5.11).

`memory.idle_page_stats` has 14 comment lines and 17 rows of bytes by age bucket. Cold page cache is the inactive file
pages that were idle for at least `boundary` buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import Feature
from koordlet.system.roots import Roots

LINES = 31
FIRST_ROW = 14
DEFAULT_BOUNDARY = 5
DEFAULT_SCAN_PERIOD_SECONDS = 5
DEFAULT_USE_HIERARCHY = 1
ENABLE = {
    "scan_period_in_seconds": str(DEFAULT_SCAN_PERIOD_SECONDS),
    "use_hierarchy": str(DEFAULT_USE_HIERARCHY),
}
"""File in `directory` -> value that switches the scanner on."""
_COLD_ROWS = ("cfei", "dfei", "cfui", "dfui")


@dataclass(frozen=True, slots=True)
class IdlePages:
    """`rows`: kind of page (`cfei` …) -> bytes in each age bucket."""

    scan_period_seconds: int
    use_hierarchy: int
    buckets: tuple[int, ...]
    rows: dict[str, tuple[int, ...]]

    def cold_bytes(self, boundary: int = DEFAULT_BOUNDARY) -> int:
        """Bytes of inactive page cache from bucket index `boundary` on."""
        return sum(sum(self.rows.get(name, ())[boundary:]) for name in _COLD_ROWS)


def directory(roots: Roots) -> Path:
    """Where the scanner's settings are."""
    return roots.sys / "kernel/mm/kidled"


def probe(roots: Roots) -> Feature:
    base = directory(roots)
    missing = [name for name in ENABLE if not (base / name).exists()]
    return Feature.when(not missing, f"{base}: no {', '.join(missing)} (needs an Anolis or Alibaba kernel)")


def parse_idle_pages(text: str, path: str = "memory.idle_page_stats") -> IdlePages:
    """Raises `MalformedFile` unless the file has exactly 31 lines of the documented form."""
    lines = text.strip("\n").splitlines()
    if len(lines) != LINES:
        raise MalformedFile(path, f"{len(lines)} lines", f"expected exactly {LINES}")
    header = {}
    for line in lines[:FIRST_ROW]:
        name, colon, value = line.lstrip("# ").partition(":")
        if colon:
            header[name.strip()] = value.strip()
    rows = {}
    for line in lines[FIRST_ROW:]:
        name, *cells = line.split()
        rows[name] = tuple(_number(cell, line, path) for cell in cells)
    buckets = header.get("buckets", "")
    return IdlePages(
        scan_period_seconds=_number(header.get("scan_period_in_seconds", ""), "scan_period_in_seconds", path),
        use_hierarchy=_number(header.get("use_hierarchy", ""), "use_hierarchy", path),
        buckets=tuple(_number(cell, buckets, path) for cell in buckets.split(",") if cell.strip()),
        rows=rows,
    )


def _number(text: str, line: str, path: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise MalformedFile(path, line, f"{text!r} is not a number")
    return int(text)
