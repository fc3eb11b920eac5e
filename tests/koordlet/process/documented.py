"""Which of the families that koordlet serves docs/metrics.md does not define."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def undocumented(families: Iterable[str]) -> list[str]:
    """Of family names as a parser gives them, which leave out a counter's `_total`."""
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    return sorted(name for name in families if not {name, f"{name}_total"} & documented)
