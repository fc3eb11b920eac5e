"""Line charts as SVG, without a library: panels with a common time axis, every sample drawn.

Nothing is smoothed or omitted; y axes begin at 0. A budget is a dashed line. Used by `soak.py`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 900, 150, 70, 20, 46, 44
NOTE_CHARS = 130
"""Of the longest line of the note that fits."""
INK, GRID, LINE, LIMIT = "#333333", "#dddddd", "#1f6fb2", "#c0392b"


@dataclass(frozen=True)
class Panel:
    """One quantity over time; ``budget`` draws a dashed line."""

    title: str
    values: Sequence[float]
    budget: float | None = None


def ticks(top: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least *top*."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(step for step in (size, 2 * size, 2.5 * size, 5 * size, 10 * size) if step >= raw)
    return [step * at for at in range(math.ceil(top / step) + 1)]


def chart(title: str, note: str, minutes: Sequence[float], panels: Sequence[Panel]) -> str:
    """The SVG document. *minutes* are the samples' times, ascending, one for each value of every panel."""
    height = TOP + len(panels) * (PANEL + GAP) + 10
    end = minutes[-1] or 1.0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="15">{escape(title)}</text>',
        *(
            f'<text x="{LEFT}" y="{33 + 13 * row}" font-size="11" fill="#666666">{escape(line)}</text>'
            for row, line in enumerate(textwrap.wrap(note, NOTE_CHARS))
        ),
    ]
    for at, panel in enumerate(panels):
        out += _panel(panel, minutes, end, TOP + at * (PANEL + GAP) + 16)
    return "\n".join([*out, "</svg>", ""])


def _panel(panel: Panel, minutes: Sequence[float], end: float, top: float) -> list[str]:
    marks = ticks(max([*panel.values, panel.budget or 0.0]))
    width, bottom = WIDTH - LEFT - RIGHT, top + PANEL

    def x(minute: float) -> float:
        return LEFT + width * minute / end

    def y(value: float) -> float:
        return bottom - PANEL * value / marks[-1]

    out = [f'<text x="{LEFT}" y="{top - 5:.0f}">{escape(panel.title)}</text>']
    for mark in marks:
        out.append(f'<line x1="{LEFT}" y1="{y(mark):.1f}" x2="{LEFT + width}" y2="{y(mark):.1f}" stroke="{GRID}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for mark in ticks(end, 6):
        if mark <= end:
            out.append(f'<text x="{x(mark):.1f}" y="{bottom + 15:.0f}" text-anchor="middle">{mark:g} min</text>')
    if panel.budget is not None:
        line = y(panel.budget)
        out.append(
            f'<line x1="{LEFT}" y1="{line:.1f}" x2="{LEFT + width}" y2="{line:.1f}" '
            f'stroke="{LIMIT}" stroke-dasharray="6 4"/>'
        )
    points = " ".join(f"{x(minute):.1f},{y(value):.1f}" for minute, value in zip(minutes, panel.values, strict=True))
    out.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.4"/>')
    return out
