"""Text from outside in messages: quoted, without control characters, bounded in length."""

from __future__ import annotations

from typing import Final

QUOTED_CHARS: Final = 200
"""Characters of a foreign text that a message quotes."""


def quoted(text: str) -> str:
    """The text in quotes. Control characters and text-direction marks are escaped. A long text is cut, and the message
    states its length."""
    if len(text) <= QUOTED_CHARS:
        return repr(text)
    return f"{text[:QUOTED_CHARS]!r} (the first {QUOTED_CHARS} of {len(text)} characters)"


def bounded(text: str, limit: int) -> str:
    """A message that may contain foreign text: at most about `limit` characters, the rest counted."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
