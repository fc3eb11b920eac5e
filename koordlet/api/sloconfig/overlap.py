"""Whether two node entries could take the same node, judged from their selectors alone (spec 01 §6.6 rule 6).

Every entry gives label sets: its matchLabels with one value of each expression that has values, for every
combination of values. Entries overlap when one of these sets matches more than one of them. (The reference
walks only some combinations: spec 01 §9 A15.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from koordlet.api.meta import LabelSelector
from koordlet.api.sloconfig.merge import selects

MAX_LABEL_SETS = 10_000
"""More combinations in one entry are refused: nobody can read such a selector either."""


class TooManyLabelSets(ValueError):
    """An entry's expressions have too many combinations of values."""


def label_sets(selector: LabelSelector) -> Iterator[dict[str, str]]:
    """The label sets that stand for a selector. Raises TooManyLabelSets."""
    valued = [(e.key, e.values) for e in selector.match_expressions if e.values]
    count = math.prod(len(values) for _, values in valued)
    if count > MAX_LABEL_SETS:
        raise TooManyLabelSets(f"a nodeSelector has {count} combinations of values, more than {MAX_LABEL_SETS}")
    for choice in itertools.product(*(values for _, values in valued)):
        yield selector.match_labels | dict(zip((key for key, _ in valued), choice, strict=True))


def overlapping(selectors: Sequence[LabelSelector | None]) -> list[int]:
    """Indexes of the entries that the first ambiguous label set matches; empty when there is none."""
    if len(selectors) < 2:
        return []
    for selector in selectors:
        for labels in label_sets(selector) if selector is not None else ():
            taken = [i for i, other in enumerate(selectors) if selects(other, labels)]
            if len(taken) > 1:
                return taken
    return []
