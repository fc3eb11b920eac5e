"""A dashboard as one HTML page, and a browser's picture of it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from scripts.screenshots.draw import drawn
from scripts.screenshots.panels import FilledPanel, Interval

WIDTH_PX, COLUMNS, ROW_PX, GAP_PX, HEAD_PX = 1600, 24, 30, 8, 58
TITLE_PX, PADDING_PX = 24, 8
COLOURS = 64
"""Of the picture's palette: text keeps its shape, and a file stays small."""
TIMEOUT_S = 120
NOTE = "preview by koordinator-py from recorded data; not drawn by Grafana"
STYLE = Path(__file__).with_name("style.css").read_text()


def _left(column: int) -> float:
    return 10 + column * (WIDTH_PX - 20 + GAP_PX) / COLUMNS


def _top(row: int) -> int:
    return HEAD_PX - 16 + row * (ROW_PX + GAP_PX)


def page_html(title: str, description: str, panels: Sequence[FilledPanel], interval: Interval) -> str:
    """The whole page."""
    seconds = interval.end - interval.start
    parts = [
        f"<header><h1>{escape(title)}</h1><span>{escape(description)}</span>"
        f"<em>{seconds / 60:.0f} minutes, UTC · {NOTE}</em></header>"
    ]
    for panel in panels:
        place = panel.spec["gridPos"]
        left, top = _left(place["x"]), _top(place["y"])
        if panel.kind == "row":
            parts.append(f'<div class="row" style="top:{top}px">{escape(panel.title)}</div>')
            continue
        width = int(_left(place["x"] + place["w"]) - left - GAP_PX)
        height = _top(place["y"] + place["h"]) - top - GAP_PX
        content = drawn(panel, width - 2 * PADDING_PX - 2, height - TITLE_PX - PADDING_PX, interval)
        parts.append(
            f'<div class="panel" style="left:{left:.0f}px;top:{top}px;width:{width}px;height:{height}px">'
            f'<h2>{escape(panel.title)}</h2><div class="content">{content}</div></div>'
        )
    return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><body>{"".join(parts)}</body>'


def height_of(panels: Sequence[FilledPanel]) -> int:
    return max(_top(panel.spec["gridPos"]["y"] + panel.spec["gridPos"]["h"]) for panel in panels) + GAP_PX


def first_rows(panels: Sequence[FilledPanel], count: int) -> list[FilledPanel]:
    """The panels of the first rows."""
    starts = [number for number, panel in enumerate(panels) if panel.kind == "row"]
    return list(panels[: starts[count]]) if len(starts) > count else list(panels)


def screenshot(page: Path, height: int, out: Path) -> None:
    """Chromium's picture of a page, with a small palette. Nothing is loaded from a network."""
    png = page.with_suffix(".png")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            f"--user-data-dir={profile}", f"--window-size={WIDTH_PX},{height}", f"--screenshot={png}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    reduce = ["pngquant", "--force", "--nofs", "--strip", f"--output={png}", str(COLOURS), str(png)]
    subprocess.run(reduce, check=True, timeout=TIMEOUT_S)
    subprocess.run(["cwebp", "-quiet", "-lossless", str(png), "-o", str(out)], check=True, timeout=TIMEOUT_S)
