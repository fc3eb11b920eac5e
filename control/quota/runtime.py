"""What the children of one quota may use of one resource at a moment (spec 06 §5.5, §5.6). Pure, exact integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """The figures of one child for one resource. `minimum`: the scaled min, or what is guaranteed if that is more;
    `request`: at most max; `lends`: an unused minimum may be used by others."""

    name: str
    weight: int
    request: int
    minimum: int
    lends: bool

    @property
    def demand(self) -> int:
        """The runtime if the total is enough for all quotas."""
        if self.request > self.minimum:
            return self.request if self.weight > 0 else self.minimum
        return self.request if self.lends else self.minimum


def distribute(total: int, shares: Sequence[Share]) -> dict[str, int]:
    """Name -> runtime.

    Minima are given even if they exceed the total. The rest is distributed by weight among the quotas that request
    more, and what exceeds a request is distributed again. Units that a division leaves go to the largest remainders,
    among equal ones to the first by name."""
    runtimes = {
        share.name: share.minimum if share.request > share.minimum or not share.lends else share.request
        for share in shares
    }
    left = total - sum(runtimes.values())
    sharing = sorted(
        (share for share in shares if share.request > share.minimum and share.weight > 0), key=lambda share: share.name
    )
    while left > 0 and sharing:
        returned = 0
        unsatisfied = []
        for share, part in zip(sharing, _parts(left, sharing), strict=True):
            runtime = runtimes[share.name] + part
            if runtime < share.request:
                unsatisfied.append(share)
            else:
                returned += runtime - share.request
                runtime = share.request
            runtimes[share.name] = runtime
        left, sharing = returned, unsatisfied
    return runtimes


def _parts(left: int, sharing: Sequence[Share]) -> list[int]:
    """`left` divided by weight."""
    weights = sum(share.weight for share in sharing)
    parts, remainders = [], []
    for share in sharing:
        part, remainder = divmod(share.weight * left, weights)
        parts.append(part)
        remainders.append(remainder)
    missing = left - sum(parts)
    for at in sorted(range(len(sharing)), key=lambda at: -remainders[at])[:missing]:  # stable: equal ones by name
        parts[at] += 1
    return parts


def scaled_minima(total: int, minima: Mapping[str, int], fixed: frozenset[str] = frozenset()) -> dict[str, int]:
    """The minima of siblings, reduced in proportion if their sum exceeds the parent's total. Those of `fixed` stay."""
    if sum(minima.values()) <= total:
        return dict(minima)
    available = total - sum(minimum for name, minimum in minima.items() if name in fixed)
    scalable = sum(minimum for name, minimum in minima.items() if name not in fixed)
    return {
        name: minimum if name in fixed else available * minimum // scalable if available > 0 and scalable > 0 else 0
        for name, minimum in minima.items()
    }
