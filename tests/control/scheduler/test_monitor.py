"""Attempts that take too long are reported (spec 05 §7.3)."""

from __future__ import annotations

from control.scheduler.cycle.monitor import AttemptMonitor
from tests.control.scheduler.build import Cluster, pod


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.late: list[str] = []
        self.monitor = AttemptMonitor(lambda: self.now, self.late.append, timeout=30)
        self.pod = Cluster().info(pod("a"))


def test_a_slow_attempt_is_reported_in_each_sweep_and_at_its_end() -> None:
    watched = Watched()
    watched.monitor.started(watched.pod)
    watched.now = 30.0
    watched.monitor.sweep()
    assert watched.late == []
    watched.now = 31.0
    watched.monitor.sweep()
    watched.monitor.sweep()
    watched.monitor.complete(watched.pod)
    assert watched.late == ["koord-scheduler"] * 3
    watched.monitor.complete(watched.pod)
    watched.monitor.sweep()
    assert len(watched.late) == 3
