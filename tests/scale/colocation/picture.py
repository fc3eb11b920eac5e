"""Results of the rounds: a table, bars for the terminal, and an SVG with every round's value as a dot. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 900, 120, 150, 56, 30
INK, GRID, DOT, OTHER = "#333333", "#dddddd", "#1f6fb2", "#c0392b"
COLOURS = {"alone": INK, "koordlet": "#2e8b57"}
BAR = 40
Rows = Mapping[tuple[str, str], Sequence[float]]
"""(kind of hog, phase) -> p99 of each round, in milliseconds."""


def table(latencies: Rows, shares: Rows, refaults: Rows) -> str:
    """Medians over the rounds."""
    lines = [
        f"{'hog':<8}{'phase':<14}{'p99 ms':>10}{'x alone':>9}{'worst ms':>10}{'idle CPU used':>15}{'refaults':>10}"
    ]
    for (kind, phase), values in latencies.items():
        alone = median(latencies[kind, "alone"])
        share = "" if phase == "alone" else f"{median(shares[kind, phase]) * 100:.0f} %"
        faults = f"{median(refaults[kind, phase]):.0f}" if kind == "memory" else ""
        lines.append(
            f"{kind:<8}{phase:<14}{median(values):>10.2f}{median(values) / alone:>9.2f}{max(values):>10.2f}"
            f"{share:>15}{faults:>10}"
        )
    return "\n".join(lines)


def bars(latencies: Rows) -> str:
    """Median p99 as bars, on a logarithmic scale."""
    low, high = _bounds(latencies)
    lines = []
    for (kind, phase), values in latencies.items():
        size = math.log(median(values) / low) / math.log(high / low)
        lines.append(f"{kind:<8}{phase:<14}{'█' * max(round(size * BAR), 1):<{BAR}} {median(values):.2f} ms")
    return "\n".join(lines)


def svg(title: str, note: str, latencies: Rows) -> str:
    """One panel per kind of hog, a row per phase, a dot per round, a line at the median; the axis is logarithmic."""
    kinds = list(dict.fromkeys(kind for kind, _ in latencies))
    low, high = _bounds(latencies)
    width = WIDTH - LEFT - RIGHT
    rows = {kind: [phase for other, phase in latencies if other == kind] for kind in kinds}
    height = TOP + sum(len(phases) * ROW + 60 for phases in rows.values())

    def x(value: float) -> float:
        return LEFT + width * math.log(value / low) / math.log(high / low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="20" y="38" fill="#666666">{escape(note)}</text>',
    ]
    top = float(TOP)
    for kind, phases in rows.items():
        bottom = top + 20 + len(phases) * ROW
        out.append(f'<text x="20" y="{top + 12:.0f}" font-weight="bold">{escape(kind)} hogs</text>')
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
            if low <= 10.0**power <= high:
                at = x(10.0**power)
                out.append(f'<line x1="{at:.1f}" y1="{top + 18:.0f}" x2="{at:.1f}" y2="{bottom:.0f}" stroke="{GRID}"/>')
                label = f"{10.0**power:g} ms"
                out.append(f'<text x="{at:.1f}" y="{bottom + 14:.0f}" text-anchor="middle">{label}</text>')
        alone = median(latencies[kind, "alone"])
        for place, phase in enumerate(phases):
            values, middle = latencies[kind, phase], top + 20 + (place + 0.5) * ROW
            out.append(f'<text x="{LEFT - 12}" y="{middle + 4:.0f}" text-anchor="end">{escape(phase)}</text>')
            out += [
                f'<circle cx="{x(value):.1f}" cy="{middle:.1f}" r="3.5" fill="{DOT}" opacity="0.6"/>'
                for value in values
            ]
            at, colour = x(median(values)), COLOURS.get(phase, OTHER)
            out.append(
                f'<line x1="{at:.1f}" y1="{middle - 10:.1f}" x2="{at:.1f}" y2="{middle + 10:.1f}" '
                f'stroke="{colour}" stroke-width="2.5"/>'
            )
            medians = f"{_short(median(values))} ms, {_short(median(values) / alone)} x"
            out.append(f'<text x="{LEFT + width + 8}" y="{middle + 4:.0f}" fill="{colour}">{medians}</text>')
        top = bottom + 40
    return "\n".join([*out, "</svg>", ""])


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _bounds(latencies: Rows) -> tuple[float, float]:
    every = [value for values in latencies.values() for value in values]
    return min(every) / 1.5, max(max(every), min(every) * 2) * 1.5
