"""The output of `--dry-run`: which pods would move, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from control.descheduler.framework.evictor import PlannedEviction

_TITLES = ("POD", "NODE", "PROFILE", "PLUGIN", "REASON")


def printed(planned: Sequence[PlannedEviction]) -> str:
    """A table with one line per pod, in the order of eviction, and a last line with the count."""
    if not planned:
        return "No pod would be evicted.\n"
    rows = [
        _TITLES,
        *((eviction.pod, eviction.node, eviction.profile, eviction.plugin, eviction.reason) for eviction in planned),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES) - 1)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    ]
    nodes = len({eviction.node for eviction in planned})
    lines.append(f"{len(planned)} pods would be evicted from {nodes} nodes.")
    return "\n".join(lines) + "\n"
