"""Amplified resources: what an amount counts on a node with amplification ratios (spec 06 §1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api.annotations.node import amplification_ratios
from koordlet.api.encoding.wire import WireError

UNIT: Final = 10_000
"""Ratios are integers in ten-thousandths, so that products are exact."""
MAX_RATIO: Final = 1000
INVALID: Final = -1


def ratios_of(annotations: Mapping[str, str]) -> dict[str, int]:
    """Resource -> ratio of a node. Raises WireError for a malformed annotation."""
    ratios = amplification_ratios(annotations) or {}
    for name, ratio in ratios.items():
        if not 0 < ratio <= MAX_RATIO:
            raise WireError(f"the ratio of {name} is not above 0 and at most {MAX_RATIO}", where=name)
    return {name: round(ratio * UNIT) for name, ratio in ratios.items()}


def amplify(amount: int, ratio: int) -> int:
    """Rounded up; a ratio of 1 or less changes nothing."""
    return amount if ratio <= UNIT else -(-amount * ratio // UNIT)
