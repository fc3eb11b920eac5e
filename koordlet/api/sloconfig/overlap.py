"""Whether two node entries could match the same node, determined from their selectors (spec 01 §6.6 rule 6). Pure.

Each entry yields label sets: its matchLabels plus one value of each expression that has values, for all combinations of
values. Entries overlap when one of these sets matches more than one of them. (Koordinator tests only some combinations:
spec 01 §9 A15.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from koordlet.api.meta import LabelSelector
from koordlet.api.sloconfig.merge import selects

MAX_LABEL_SETS = 10_000
"""An entry with more combinations is refused, to bound the time of the check."""


class TooManyLabelSets(ValueError):
    """An entry's expressions have too many combinations of values."""


def label_sets(selector: LabelSelector) -> Iterator[dict[str, str]]:
    """The label sets of a selector. Raises TooManyLabelSets."""
    valued = [(e.key, e.values) for e in selector.match_expressions if e.values]
    count = math.prod(len(values) for _, values in valued)
    if count > MAX_LABEL_SETS:
        raise TooManyLabelSets(f"a nodeSelector has {count} combinations of values, more than {MAX_LABEL_SETS}")
    for choice in itertools.product(*(values for _, values in valued)):
        yield selector.match_labels | dict(zip((key for key, _ in valued), choice, strict=True))


def overlapping(selectors: Sequence[LabelSelector | None]) -> list[int]:
    """Indexes of the entries that match the first ambiguous label set; empty when there is none."""
    if len(selectors) < 2:
        return []
    for selector in selectors:
        for labels in label_sets(selector) if selector is not None else ():
            matching = [i for i, other in enumerate(selectors) if selects(other, labels)]
            if len(matching) > 1:
                return matching
    return []
