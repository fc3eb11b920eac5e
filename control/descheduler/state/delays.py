"""Interference in NodeMetrics: which services co-located pods delay (docs/interference.md). Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.pages.interference import EXTENSION_KEY, Brief, briefs_of
from koordlet.api.qos import LS, LSE, LSR

MAX_DELAYS_PER_NODE: Final = 1000
"""Any client that writes NodeMetrics could list more."""
_SERVICES: Final = frozenset((LSE, LSR, LS))
_DELAYED: Final = frozenset(("interfered", "recovering"))
_NEIGHBOUR: Final = "neighbour"


class Delay(msgspec.Struct, frozen=True):
    """One verdict: a container of a service loses time because of co-located pods."""

    victim: str
    """`namespace/name` of the pod"""
    container: str
    resource: str
    culprit: str
    """`namespace/name` of the main culprit's pod; empty: unknown, or not a pod"""
    share: float
    """of the delay that the main culprit causes, 0..1"""
    lost: float
    """of the time that the container wanted to run, 0..1"""
    confidence: float

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.victim, self.container, self.resource)


def delays_of(metric: NodeMetric) -> list[Delay]:
    """The services that are delayed in this report. An extension of another format is ignored: third parties may use
    the key."""
    delays: list[Delay] = []
    for pod in metric.status.pods_metric:
        document = (pod.extensions or {}).get(EXTENSION_KEY)
        if document is None or pod.qos not in _SERVICES:
            continue
        for brief in briefs_of(document):
            if brief.cause == _NEIGHBOUR and brief.state in _DELAYED and len(delays) < MAX_DELAYS_PER_NODE:
                delays.append(_delay(f"{pod.namespace}/{pod.name}", brief))
    return delays


def _delay(victim: str, brief: Brief) -> Delay:
    parts = brief.culprit.split("/")
    culprit = "/".join(parts[:2]) if len(parts) == 3 else ""
    share, lost = (min(max(value, 0.0), 1.0) for value in (brief.share, brief.lost))
    return Delay(victim, brief.container, brief.resource, culprit, share, lost, brief.confidence)
