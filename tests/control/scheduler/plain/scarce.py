"""ScarceResourceAvoidance, one node at a time (spec 05 §13.2)."""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.api.core import Node, Pod
from tests.control.scheduler.plain.world import World, allocatable, requests


def scarce_score(pod: Pod, node: Node, _: World, scarce: Sequence[str]) -> int:
    listed = [name for name, amount in allocatable(node).items() if amount > 0 and name != "pods"]
    unused = [name for name in listed if name not in requests(pod)]
    kept = [name for name in unused if name in scarce]
    if not unused or not kept:
        return 100
    return 100 * (len(unused) - len(kept)) // len(unused)
