"""Kills by name: logged once and counted; overwritten ones are counted as missed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from koordlet.metricsadvisor.collector import ProbeContext
from koordlet.metricsadvisor.stalls import oom as collector_module
from koordlet.metricsadvisor.stalls.oom import OomCollector
from koordlet.probes.oom import OomKill, OomSnapshot
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS", namespace="prod", pod_name="web-0")


def kill(number: int, **changes: object) -> OomKill:
    fields: dict[str, object] = {
        "number": number,
        "at": 90.0,
        "scope": "limit",
        "victim_pid": 7,
        "victim_comm": "java",
        "victim_cgroup": 10,
        "victim_path": "k/web",
        "trigger_pid": 8,
        "trigger_comm": "curl",
        "trigger_cgroup": 10,
        "limit_cgroup": 10,
        "limit_path": "k/web",
        "limit_pages": 100,
        "usage_pages": 100,
        "anon_pages": 80,
        "file_pages": 5,
        "shmem_pages": 1,
        "score_adj": 0,
    }
    return OomKill(**{**fields, **changes})  # type: ignore[arg-type]


class Ring:
    source = "bpf"

    def __init__(self) -> None:
        self.kills: list[OomKill] = []

    def read(self) -> OomSnapshot:
        counts = np.array([len(self.kills)], dtype=np.int64)
        none = np.zeros(1, dtype=np.int64)
        killed = {"unknown": none, "limit": counts, "node": none}
        return OomSnapshot(len(self.kills), np.array([10]), killed, counts, tuple(self.kills))

    def reclaim(self, live: frozenset[int]) -> int:
        return 0

    def close(self, keep: bool) -> None:
        """Holds nothing."""


class Lines:
    def __init__(self) -> None:
        self.logged: list[dict[str, object]] = []

    def warning(self, message: str, **fields: object) -> None:
        self.logged.append(fields)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    recorded = Lines()
    monkeypatch.setattr(collector_module, "log", recorded)
    return recorded


def made(ring: Ring, registries: Registries, subjects: Sequence[Subject] = (WEB,)) -> OomCollector:
    index = CgroupIndex(lambda: [("k/web", 10), ("k", 9)])
    workloads = Workloads(1, subjects=tuple(subjects))
    context = ProbeContext(lambda: workloads, registries, index, clock=lambda: 100.0)
    collector = OomCollector(context, limits=index)
    collector.attach(ring)
    return collector


def test_each_kill_is_logged_once_with_names(lines: Lines) -> None:
    ring, registries = Ring(), Registries()
    registries.node = "n"
    collector = made(ring, registries)
    collector.read()
    ring.kills = [kill(1), kill(2, limit_cgroup=9, limit_path="/k"), kill(3, limit_cgroup=0, scope="node")]
    collector.read()
    collector.read()
    assert [line["victim"] for line in lines.logged] == ["prod/web-0/web"] * 3
    assert [line["scope"] for line in lines.logged] == ["limit", "limit", "node"]
    assert lines.logged[0]["age"] == 10.0 and lines.logged[0]["resident_pages"] == 86
    assert [line["limit"] for line in lines.logged] == ["prod/web-0/web", "k", ""]
    assert collector.missed == 0
    [sample] = [
        sample
        for family in registries.external.collect()
        for sample in family.samples
        if sample.name == "koordlet_oom_kills_total"
    ]
    assert (sample.labels["container_name"], sample.labels["scope"], sample.value) == ("web", "limit", 3)


def test_overwritten_kills_are_counted(lines: Lines) -> None:
    ring = Ring()
    collector = made(ring, Registries())
    ring.kills = [kill(3), kill(4)]
    collector.read()
    assert (collector.missed, len(lines.logged)) == (2, 2)
    ring.kills = [kill(9)]
    collector.read()
    assert collector.missed == 6


def test_a_removed_cgroup_has_the_kernels_name_for_it(lines: Lines) -> None:
    ring = Ring()
    collector = made(ring, Registries())
    ring.kills = [kill(1, victim_cgroup=77, victim_path="podabc/def", trigger_cgroup=0)]
    collector.read()
    [line] = lines.logged
    assert (line["victim"], line["trigger"]) == ("podabc/def", "kernel")
