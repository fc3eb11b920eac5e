"""A text of a terminal as SVG.

Lines that start with `$ ` are commands. The font is the reader's monospace font; every line has its width stretched to
the grid, so that columns stay aligned in every font.
"""

from __future__ import annotations

from html import escape

CHARACTER_PX = 7.0
LINE_PX = 16
MARGIN_PX = 14
COLOURS = {"$ ": "#81d4fa", "✓ ": "#a5d6a7"}
"""Start of a line -> its colour."""


def terminal(content: str) -> str:
    """Raises ValueError for a text without lines."""
    lines = content.rstrip("\n").split("\n")
    if lines == [""]:
        raise ValueError("the text is empty")
    width = round(max(map(len, lines)) * CHARACTER_PX + 2 * MARGIN_PX)
    height = len(lines) * LINE_PX + 2 * MARGIN_PX
    rows = [
        f'<text x="{MARGIN_PX}" y="{MARGIN_PX + (number + 1) * LINE_PX - 4}" textLength="{len(line) * CHARACTER_PX:g}" '
        f'lengthAdjust="spacingAndGlyphs" fill="{COLOURS.get(line[:2], "#eceff1")}">{escape(line)}</text>'
        for number, line in enumerate(lines)
        if line.strip()
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            'font-family="monospace" font-size="11.4" xml:space="preserve">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#263238"/>',
            *rows,
            "</svg>\n",
        )
    )
