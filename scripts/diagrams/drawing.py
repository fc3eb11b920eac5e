"""SVG of boxes and arrows. Coordinates and sizes are in pixels; positions of boxes are those of their centres."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

FONT_PX = 13
LINE_PX = 17
BOX_HEIGHT_PX = 44
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#546e7a"/></marker></defs>'
)
COLOURS = {
    "plain": ("#eceff1", "#78909c"),
    "ours": ("#e3f2fd", "#1e88e5"),
    "object": ("#fff8e1", "#ffb300"),
    "service": ("#e8f5e9", "#43a047"),
    "batch": ("#fbe9e7", "#f4511e"),
}
"""Kind of a box -> fill, border."""


@dataclass(frozen=True)
class Box:
    """A labelled rectangle; `\\n` in the text starts a new line."""

    x: float
    y: float
    text: str
    kind: str = "plain"
    width: float = 150
    height: float = BOX_HEIGHT_PX


@dataclass(frozen=True)
class Arrow:
    """From border to border of two boxes, straight; or through corners."""

    start: str
    end: str
    label: str = ""
    corners: Sequence[tuple[float, float]] = ()
    shift: tuple[float, float] = (0, -6)
    """Of the label from the middle of the arrow."""


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """The document, on a white ground so that dark pages show it, too."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'font-family="sans-serif" font-size="{FONT_PX}" fill="#263238">',
            f"<title>{escape(title)}</title>",
            ARROW,
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        )
    )


def text(x: float, y: float, content: str, *, anchor: str = "middle", size: int = FONT_PX, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(content)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """With its upper left corner at (x, y)."""
    fill, border = COLOURS[kind]
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{border}" '
        'stroke-width="1.5"/>'
    )


def box(shape: Box) -> str:
    lines = shape.text.split("\n")
    top = shape.y - (len(lines) - 1) * LINE_PX / 2 + FONT_PX / 3
    labels = [
        text(shape.x, top + number * LINE_PX, line, bold=number == 0 and len(lines) > 1)
        for number, line in enumerate(lines)
    ]
    frame = rectangle(shape.x - shape.width / 2, shape.y - shape.height / 2, shape.width, shape.height, shape.kind)
    return "\n".join((frame, *labels))


def border_point(shape: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the centre of a box to a point leaves the box."""
    dx, dy = towards[0] - shape.x, towards[1] - shape.y
    scale = min(
        shape.width / 2 / abs(dx) if dx else float("inf"),
        shape.height / 2 / abs(dy) if dy else float("inf"),
    )
    return shape.x + dx * scale, shape.y + dy * scale


def arrow(line: Arrow, boxes: dict[str, Box]) -> str:
    start, end = boxes[line.start], boxes[line.end]
    first = border_point(start, line.corners[0] if line.corners else (end.x, end.y))
    last = border_point(end, line.corners[-1] if line.corners else (start.x, start.y))
    points = [first, *line.corners, last]
    path = " ".join(f"{x:g},{y:g}" for x, y in ((round(x, 1), round(y, 1)) for x, y in points))
    drawn = f'<polyline points="{path}" fill="none" stroke="#546e7a" stroke-width="1.5" marker-end="url(#arrow)"/>'
    if not line.label:
        return drawn
    before, after = points[(len(points) - 1) // 2], points[(len(points) - 1) // 2 + 1]
    x, y = (before[0] + after[0]) / 2 + line.shift[0], (before[1] + after[1]) / 2 + line.shift[1]
    rows = line.label.split("\n")
    labels = [
        text(round(x, 1), round(y - (len(rows) - 1 - number) * 14, 1), row, size=11) for number, row in enumerate(rows)
    ]
    return "\n".join((drawn, *labels))


def flow(width: int, height: int, title: str, boxes: dict[str, Box], arrows: Iterable[Arrow]) -> str:
    """A diagram of boxes by name and of arrows between them."""
    parts = [arrow(line, boxes) for line in arrows] + [box(shape) for shape in boxes.values()]
    return svg(width, height, title, parts)
