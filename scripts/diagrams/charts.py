"""Diagrams of amounts and of time: the worked example of overcommitted CPU, and what a culprit is."""

from __future__ import annotations

from scripts.diagrams.drawing import rectangle, svg, text

CORES = 16.0
CORE_PX = 38


def _bar(y: float, title: str, parts: tuple[tuple[float, str, str], ...]) -> list[str]:
    """A bar of (cores, label, kind) parts."""
    drawn = [text(20, y - 8, title, anchor="start", bold=True)]
    x = 20.0
    for cores, label, kind in parts:
        drawn.append(rectangle(x, y, cores * CORE_PX, 44, kind))
        for number, line in enumerate((label, f"{cores:g}")):
            drawn.append(text(x + cores * CORE_PX / 2, y + 19 + 16 * number, line, size=10 if cores < 2 else 12))
        x += cores * CORE_PX
    if round(x - 20, 3) != CORES * CORE_PX:
        raise ValueError(f"{title}: the parts are {(x - 20) / CORE_PX:g} cores, not {CORES:g}")
    return drawn


def overcommit() -> str:
    parts = [
        *_bar(
            40,
            "What services request: 3 cores seem to be free",
            ((12, "requested by services", "service"), (1, "system", "plain"), (3, "free", "object")),
        ),
        *_bar(
            130,
            "What they use: 5.6 cores are offered to batch pods",
            ((3, "used", "service"), (1, "system", "plain"), (5.6, "batch", "batch"), (6.4, "kept free", "object")),
        ),
        *_bar(
            220,
            "When they use more, the offer falls",
            ((7, "used", "service"), (1, "system", "plain"), (1.6, "batch", "batch"), (6.4, "kept free", "object")),
        ),
    ]
    return svg(650, 290, "Cores of a node with 16 cores", parts)


def interference() -> str:
    axis = (
        '<line x1="110" y1="150" x2="690" y2="150" stroke="#546e7a" stroke-width="1.5" marker-end="url(#arrow)"/>'
        '<path d="M230 36 V158 M430 36 V158" stroke="#b0bec5" stroke-dasharray="4 4"/>'
    )
    parts = [
        axis,
        text(100, 66, "web", anchor="end", bold=True),
        text(100, 116, "batch-0", anchor="end", bold=True),
        rectangle(110, 46, 80, 30, "service"),
        text(150, 66, "has the CPU", size=11),
        rectangle(230, 46, 200, 30, "object"),
        text(330, 66, "waits: delayed by batch-0", size=11),
        rectangle(430, 46, 140, 30, "service"),
        text(500, 66, "has the CPU", size=11),
        rectangle(190, 96, 240, 30, "batch"),
        text(310, 116, "has the CPU", size=11),
        text(230, 172, "web is ready", size=11),
        text(430, 172, "batch-0 is descheduled", size=11),
        text(690, 172, "time", size=11, anchor="end"),
    ]
    return svg(710, 190, "Waiting for a CPU, and the culprit that has it", parts)
