"""Writes the table of systemd units in docs/security.md from `systemd-analyze security`, offline.

Use: `make security-tables`; a test fails if the exposure level of a unit rises or the table is not current.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.securitytables import PAGE, ROOT, table

UNITS = {
    "containerd": ROOT / "deploy/runtimeproxy/containerd/koord-runtime-proxy.service",
    "docker": ROOT / "deploy/runtimeproxy/docker/koord-runtime-proxy.service",
}
"""Backend -> unit."""
HOST_UNITS = Path("usr/lib/systemd/system")
_SECTION = re.compile(r"(<!-- units -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class UnitExposure:
    """`level`: overall, of 10. `remaining`: setting -> (its part of the level, a description)."""

    level: float
    remaining: dict[str, tuple[float, str]]


def exposure(unit: Path) -> UnitExposure:
    """systemd's report about the unit, with this machine's own units beside it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree("/" / HOST_UNITS, root / HOST_UNITS, symlinks=True)
        own = root / "etc/systemd/system"
        own.mkdir(parents=True)
        shutil.copy(unit, own)
        settings: list[dict[str, Any]] = json.loads(_analyze(root, unit.name, "--json=short"))
        level = re.search(r"exposure level for \S+: ([0-9.]+)", _analyze(root, unit.name))
    if level is None:
        raise ValueError(f"no exposure level of {unit}")
    remaining = {
        each["name"]: (float(each["exposure"]), each["description"]) for each in settings if each.get("exposure")
    }
    return UnitExposure(float(level[1]), remaining)


def _analyze(root: Path, unit: str, *more: str) -> str:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--root={root}", *more, unit]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def version() -> str:
    """systemd's, which determines the settings that count."""
    return subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def section() -> str:
    """The text between the marks of the page."""
    return (
        f"`systemd-analyze security` of systemd {version()}, of 10 (lower is better):\n\n"
        + table(("unit", "exposure level", "setting that remains", "its part", "systemd's description"), _rows())
        + "\n"
    )


def _rows() -> Iterator[tuple[str, ...]]:
    for backend, unit in UNITS.items():
        known = exposure(unit)
        for number, (name, (part, text)) in enumerate(known.remaining.items()):
            head = (f"koord-runtime-proxy for {backend}", f"{known.level}") if number == 0 else ("", "")
            yield *head, f"`{name}`".replace("|", "\\|"), f"{part}", text


def page(text: str) -> str:
    """The page with the current section."""
    return _SECTION.sub(lambda match: match[1] + section() + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
