"""Output to a terminal without control characters from foreign text.

Names of cgroups, pods and errors come from other users. A terminal would execute escape sequences in them (clipboard,
title, cursor), so each control character is replaced by U+FFFD before rich adds its own sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""C0 and C1 controls, and the characters that change the direction of text."""
UNCUT_COLUMNS: Final = 1000
"""Width of tables, so that a terminal's width does not cut them."""
_REPLACED: Final = dict.fromkeys(CONTROLS, "\N{REPLACEMENT CHARACTER}")
_LINES: Final = {code: text for code, text in _REPLACED.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """One line of text without control characters."""
    return text.translate(_REPLACED)


def printable_lines(text: str) -> str:
    """The same, but line ends and tabs stay."""
    return text.translate(_LINES)


class SafeConsole(Console):
    """A console that prints foreign text without its control characters, and does not take it for markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
