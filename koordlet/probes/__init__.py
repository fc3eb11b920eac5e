"""Probes: load BPF programs and read their tables as typed numpy snapshots.

`open_probes` is the way in; `diff` makes windows of snapshots and `quantile` reads a histogram. What each probe
measures, its error and its cost: docs/probes.md.
"""

from koordlet.probes.openprobes import WANTED, ProbeSet, SchedLatencySource, open_probes
from koordlet.probes.schedlatency.layout import SPECIAL_KEYS, Sizes, key_name
from koordlet.probes.schedlatency.snapshot import BOUNDS_NS, Culprit, Lost, SchedLatencySnapshot, diff, quantile
from koordlet.probes.status import ProbeStatus

__all__ = [
    "BOUNDS_NS",
    "SPECIAL_KEYS",
    "WANTED",
    "Culprit",
    "Lost",
    "ProbeSet",
    "ProbeStatus",
    "SchedLatencySnapshot",
    "SchedLatencySource",
    "Sizes",
    "diff",
    "key_name",
    "open_probes",
    "quantile",
]
