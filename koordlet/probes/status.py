"""What became of each probe: a record for the log, the metrics and `koordctl status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """``loaded``: a BPF program counts in the kernel. ``source``: where the numbers come from (``bpf``, ``bcc``,
    ``schedstat``, ``pressure``, ``none``). ``reason``: why it is not the best of these, every rung that failed
    in order; empty when all is well."""

    loaded: bool
    source: str
    reason: str = ""
    pinned: bool = False
    """The counts outlive this process."""
    reused: bool = False
    """An earlier process had loaded it; its counts go on."""
