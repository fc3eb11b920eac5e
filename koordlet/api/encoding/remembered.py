"""Results of parsing, kept by text, so that an unchanged text is parsed once and not once per round.

Bounded in entries and in characters; the least recently used results are dropped first. Errors are kept too: a
malformed text must not cost more than a correct one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_ENTRIES: Final = 4096
MAX_CHARS: Final = 4 << 20
"""Characters of all kept texts together."""


class RememberedTexts(Generic[T]):
    """Calls `parse` for texts that are not cached. The result is shared between callers, so it must not be
    modified. Exceptions of the types in `errors` are remembered and raised again."""

    def __init__(
        self,
        parse: Callable[[str], T],
        errors: type[Exception],
        *,
        max_entries: int = MAX_ENTRIES,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._parse = parse
        self._errors = errors
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._results: OrderedDict[str, tuple[T | None, Exception | None]] = OrderedDict()
        self.kept_chars = 0
        """Characters of the remembered texts."""

    def __call__(self, text: str) -> T:
        """The result for `text`. Raises what `parse` raises."""
        known = self._results.get(text)
        if known is None:
            known = self._add(text)
        else:
            self._results.move_to_end(text)
        value, error = known
        if error is not None:
            raise error.with_traceback(None)
        return value  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._results)

    def _add(self, text: str) -> tuple[T | None, Exception | None]:
        known: tuple[T | None, Exception | None]
        try:
            known = self._parse(text), None
        except self._errors as error:
            known = None, error.with_traceback(None)
        self._results[text] = known
        self.kept_chars += len(text)
        while len(self._results) > self._max_entries or self.kept_chars > self._max_chars:
            dropped, _ = self._results.popitem(last=False)
            self.kept_chars -= len(dropped)
        return known
