"""Which replicas are slower than the same container of the same workload on other nodes. Pure.

The peers of a replica are the replicas on other nodes: its node's own would hide a slow node. Everything is compared
within a window of minutes, so a workload whose load or version changes is not compared with its past.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from control.manager.peers.samples import Replica
from control.manager.peers.settings import PeerSettings
from koordlet.api.crs.performance import CPI, WAITS

MAD_TO_DEVIATION = 1.4826
"""Median of absolute deviations -> standard deviation of a normal distribution."""


@dataclass(frozen=True, slots=True)
class PeerDistribution:
    """One figure over all reports of the peers."""

    mean: float
    median: float
    p90: float
    p99: float
    deviation: float
    """Standard deviation."""
    spread: float
    """Standard deviation estimated by the median of absolute deviations."""
    samples: int
    replicas: int
    nodes: int


@dataclass(frozen=True, slots=True)
class PeerOutlier:
    """One figure of one replica that is worse than its peers'."""

    replica: Replica
    figure: str
    value: float
    """Mean of the reports that were compared."""
    threshold: float
    peers: PeerDistribution


@dataclass(frozen=True, slots=True)
class FigureReports:
    """All reports of one figure in a group, as columns."""

    values: NDArray[np.float64]
    nodes: NDArray[np.intp]
    """Number of the report's node."""
    pods: NDArray[np.intp]
    """Number of the report's replica."""

    @classmethod
    def of(cls, replicas: Sequence[Replica], figure: str, settings: PeerSettings) -> FigureReports:
        """At most `settings.compared` reports, evenly chosen."""
        number = {node: at for at, node in enumerate(dict.fromkeys(replica.node for replica in replicas))}
        rows = [
            (value, number[replica.node], pod)
            for pod, replica in enumerate(replicas)
            for value in usable(replica, figure, settings)
        ]
        rows = rows[:: max(-(-len(rows) // settings.compared), 1)]
        values, nodes, pods = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(values, float), np.array(nodes, np.intp), np.array(pods, np.intp))

    def elsewhere(self, node: int) -> PeerDistribution | None:
        """The distribution on all other nodes; None without any."""
        is_peer = self.nodes != node
        values = self.values[is_peer]
        if not len(values):
            return None
        median, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return PeerDistribution(
            mean=float(values.mean()),
            median=median,
            p90=p90,
            p99=p99,
            deviation=float(values.std()),
            spread=MAD_TO_DEVIATION * float(np.median(np.abs(values - median))),
            samples=len(values),
            replicas=len(np.unique(self.pods[is_peer])),
            nodes=len(np.unique(self.nodes[is_peer])),
        )


def outliers(
    replicas: Sequence[Replica], active: Iterable[tuple[str, str]], settings: PeerSettings
) -> list[PeerOutlier]:
    """`active`: (pod UID, figure) of the outliers before: they end only below `settings.leave` of the threshold."""
    if len(replicas) <= settings.peers:
        return []
    before = set(active)
    number = {node: at for at, node in enumerate(dict.fromkeys(replica.node for replica in replicas))}
    slower = []
    for figure in sorted({name for replica in replicas for sample in replica.samples for name in sample.figures}):
        reports = FigureReports.of(replicas, figure, settings)
        if not len(reports.values):
            continue
        # No threshold is below that of peers that all are as good as the best.
        lowest = float(reports.values.min())
        floor = settings.leave * max(settings.factor * lowest, lowest + _least(figure, settings))
        for replica in replicas:
            own = usable(replica, figure, settings)[-settings.lasting_reports :]
            if len(own) < settings.lasting_reports or max(own) <= floor:
                continue
            peers = reports.elsewhere(number[replica.node])
            if peers is None or peers.replicas < settings.peers or peers.samples < settings.peer_samples:
                continue
            limit = threshold(peers, figure, settings)
            # Begins when all of the last reports exceed the threshold, ends when all are well below it.
            was_slow = (replica.uid, figure) in before
            if (max(own) > settings.leave * limit) if was_slow else (min(own) > limit):
                slower.append(PeerOutlier(replica, figure, sum(own) / len(own), limit, peers))
    return slower


def threshold(peers: PeerDistribution, figure: str, settings: PeerSettings) -> float:
    """A figure above it is worse than the peers'."""
    return max(
        settings.factor * peers.median,
        peers.median + settings.deviations * peers.spread,
        peers.median + _least(figure, settings),
    )


def usable(replica: Replica, figure: str, settings: PeerSettings) -> list[float]:
    """The figure in the replica's reports in which it used enough CPU, oldest first."""
    least = settings.cpi_cores if figure == CPI else settings.wait_cores
    return [sample.figures[figure] for sample in replica.samples if figure in sample.figures and sample.cores >= least]


def _least(figure: str, settings: PeerSettings) -> float:
    return settings.least_wait if figure in WAITS else 0.0
