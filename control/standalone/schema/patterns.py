"""Regular expressions of CRD schemas, matched by RE2 as in Kubernetes.

RE2 does not backtrack: matching takes time proportional to the text, and memory is bounded. Python's `re` backtracks: a
short pattern and a short text of a tenant can take it years.
"""

from __future__ import annotations

from functools import lru_cache

import re2

MAX_CHARS = 64 << 10
"""Characters of a pattern; longer ones are refused before RE2 quotes them in an error."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
}
"""RE2's reason -> that of Go's regexp/syntax, which kube-apiserver reports; others are the same."""


class PatternError(ValueError):
    """The pattern does not have RE2's syntax, or is too large."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises PatternError."""
        if len(pattern) > MAX_CHARS:
            raise PatternError("expression too large")
        try:
            self._compiled = re2.compile(pattern.encode(), _OPTIONS)
        except UnicodeEncodeError as error:
            raise PatternError("invalid UTF-8") from error
        except re2.error as error:
            reason, _, part = error.args[0].decode(errors="replace").partition(": ")
            reason = _REASONS.get(reason, reason)
            raise PatternError(f"{reason}: `{part}`" if part else reason) from error

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        return self._compiled.search(text.encode(errors="replace")) is not None


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """The compiled pattern; raises PatternError."""
    return Pattern(pattern)
