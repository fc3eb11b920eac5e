"""The state of each probe: a record for the log, the metrics and `koordctl status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """Whether a probe counts, and where its figures come from."""

    loaded: bool
    """A BPF program counts in the kernel."""
    source: str
    """Where the figures come from: ``bpf``, ``bcc``, ``schedstat``, ``pressure``, ``files``, ``none``."""
    reason: str = ""
    """Why that is not the best source: every way that failed, in order; empty if it is the best."""
    pinned: bool = False
    """The counts survive this process."""
    reused: bool = False
    """An earlier process loaded the programs; their counts continue."""
