"""Attempts that take too long are told (spec 05 §7.3)."""

from __future__ import annotations

from control.scheduler.cycle.monitor import Monitor
from tests.control.scheduler.build import Cluster, pod


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.late: list[str] = []
        self.monitor = Monitor(lambda: self.now, self.late.append, timeout=30, unhandled=5)
        self.pod = Cluster().info(pod("a"))


def test_a_slow_attempt_is_told_each_sweep_and_at_its_end() -> None:
    watched = Watched()
    watched.monitor.taken(watched.pod)
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


def test_a_pod_without_an_attempt_is_forgotten() -> None:
    watched = Watched()
    watched.monitor.taken(watched.pod)
    watched.now = 5.0
    watched.monitor.sweep()
    assert len(watched.monitor) == 1
    watched.now = 5.1
    watched.monitor.sweep()
    assert len(watched.monitor) == 0
    assert watched.late == []


def test_a_terminating_pod_is_not_followed() -> None:
    watched = Watched()
    watched.monitor.taken(watched.pod)
    watched.pod.terminating = True
    watched.monitor.taken(watched.pod)
    assert len(watched.monitor) == 0
