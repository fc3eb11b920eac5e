"""Regular expressions of CEL's `matches`, bounded in memory, time and log lines.

RE2 takes time linear in the text, but a pattern of 20 characters can need 8 MB and 40 ms to compile, and the `re2`
module compiles a pattern that it refuses each time again, with a line on standard error. Here a refused pattern is
remembered, too, and an evaluation states what its patterns cost, in the steps of a search for devices (2 us).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

MAX_PATTERN_CHARS: Final = 256
MAX_TEXT_CHARS: Final = 256
"""An attribute of a device has at most 64."""
MAX_PATTERN_BYTES: Final = 128 << 10
"""Memory of a compiled pattern. Compilation takes up to 7 ms."""
COMPILE_STEPS: Final = 3000
TEXT_CHARS_PER_STEP: Final = 256
"""Times the instructions of the pattern: one takes up to 7 ns per character."""
MAX_STEPS: Final = 20_000
"""Of the patterns of one evaluation."""
REMEMBERED_PATTERNS: Final = 256


class RegexMeter:
    """Evaluates `matches` and counts its cost."""

    def __init__(self) -> None:
        self.steps = 0
        """Since the last reset by the owner."""

    def matches(self, text: Any, pattern: Any) -> Any:
        """A BoolType, or a CELEvalError with the reason for which it is not evaluated."""
        from celpy import celtypes
        from celpy.evaluation import CELEvalError

        if not isinstance(text, str) or not isinstance(pattern, str):
            return CELEvalError("matches needs a text and a pattern")
        if len(text) > MAX_TEXT_CHARS or len(pattern) > MAX_PATTERN_CHARS:
            return CELEvalError(f"matches evaluates at most {MAX_TEXT_CHARS} characters")
        compilations = _compiled.cache_info().misses
        compiled = _compiled(str(pattern))
        self.steps += COMPILE_STEPS * (_compiled.cache_info().misses - compilations)
        if isinstance(compiled, str):
            return CELEvalError(compiled)
        self.steps += 1 + compiled.programsize * len(text) // TEXT_CHARS_PER_STEP
        if self.steps > MAX_STEPS:
            return CELEvalError("the patterns take too long")
        return celtypes.BoolType(compiled.search(str(text)) is not None)


@lru_cache(REMEMBERED_PATTERNS)
def _compiled(pattern: str) -> Any:
    """The compiled pattern, or why RE2 refuses it."""
    import re2

    options = re2.Options()
    options.max_mem = MAX_PATTERN_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        return f"the pattern is refused: {reason.decode(errors='replace') if isinstance(reason, bytes) else reason}"
