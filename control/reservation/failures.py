"""Why no reservation fits a pod, from the message of a failed attempt (spec 05 §5.8, 06 §4.7). Pure."""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(r"^0/\d+ nodes are available: ")
_SEPARATORS: Final = re.compile(r"\. |,")
_TOTAL: Final = re.compile(r"(\d+) Reservation\(s\) matched owner total")
_ITEM: Final = re.compile(r"\d+ Reservation\(s\)")
NAMED: Final = "exactly matches the requested reservation name"
NODE_REASON: Final = "for node reason that"


def reservation_failure(message: str) -> str:
    """The text of the event FailedScheduling-Reservation; empty if no owner matched.

    The item about the requested name is first, items with node reasons are last."""
    items = [item.strip().removesuffix(".") for item in _SEPARATORS.split(_HEAD.sub("", message))]
    totals = [match for item in items if (match := _TOTAL.fullmatch(item))]
    if not totals:
        return ""
    kept = [item for item in items if _ITEM.match(item) and not _TOTAL.fullmatch(item)]
    kept.sort(key=lambda item: (NAMED not in item, NODE_REASON in item))
    return f"0/{totals[-1].group(1)} reservations are available: {', '.join(kept)}."
