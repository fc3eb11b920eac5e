"""The constants of the comparison, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GATE: Final = "PeerComparison"


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Defaults are in use; tests choose others."""

    window_seconds: float = 900.0
    """Reports that are compared: 15 of one minute each."""
    reports: int = 15
    """Per replica."""
    peers: int = 3
    """Least number of replicas on other nodes, and"""
    peer_samples: int = 9
    """least number of their reports."""
    lasting_reports: int = 3
    """A replica must be slower than its peers in this many consecutive reports; as many reports without a difference
    end the finding."""
    factor: float = 1.5
    """Least multiple of the peers' median."""
    deviations: float = 3.0
    """Least distance from the peers' median, in standard deviations; estimated by the median of absolute deviations, so
    that one slow peer does not hide another."""
    least_wait: float = 0.05
    """Least distance from the peers' median of a fraction of time waited."""
    leave: float = 0.8
    """Of the threshold: below it a replica counts as not slower."""
    cpi_cores: float = 0.25
    """Cycles per instruction of a container that uses less CPU are meaningless."""
    wait_cores: float = 0.05
    """A container that uses less CPU hardly ever wants to run."""
    compared: int = 2000
    """Reports of one figure that are compared with, at most; more are thinned out evenly."""
