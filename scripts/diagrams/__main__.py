"""Writes docs/diagrams/*.svg: `make diagrams`; a test compares them.

demo.txt in that folder is a part of what `make demo ONCE=1` printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.diagrams import charts, flows
from scripts.diagrams.terminal import terminal

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "diagrams"
DIAGRAMS: dict[str, Callable[[], str]] = {
    "overview": flows.overview,
    "observe": flows.observe,
    "enforce": flows.enforce,
    "control-plane": flows.control_plane,
    "overcommit": charts.overcommit,
    "interference": charts.interference,
}


def files() -> dict[Path, str]:
    """Every file with its content."""
    recording = terminal((FOLDER / "demo.txt").read_text(encoding="utf-8"))
    return {FOLDER / f"{name}.svg": draw() for name, draw in DIAGRAMS.items()} | {FOLDER / "demo.svg": recording}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
