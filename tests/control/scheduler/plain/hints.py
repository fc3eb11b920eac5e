"""SchedulingHint, from the annotation's text (spec 05 §13.3)."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from koordlet.api.core import Pod

KEYS = ("internal.scheduling.koordinator.sh/scheduling-hint", "scheduling.koordinator.sh/scheduling-hint")


def _hint(pod: Pod) -> dict[str, Any]:
    for key in KEYS:
        if pod.metadata.annotations.get(key):
            hint: dict[str, Any] = json.loads(pod.metadata.annotations[key])
            return hint
    return {}


def only(pod: Pod, nodes: Collection[str]) -> set[str] | None:
    """The only nodes, of those that there are; None: any."""
    names = _hint(pod).get("nodeNames") or []
    return {name for name in names if name in nodes} if names else None


def preferred(pod: Pod, fitting: Collection[str], most: int) -> str | None:
    """The node that is taken without looking at others, of those that fit."""
    for name in (_hint(pod).get("preferredNodeNames") or [])[:most]:
        if name in fitting:
            return str(name)
    return None
