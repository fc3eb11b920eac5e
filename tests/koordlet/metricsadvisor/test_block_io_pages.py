"""Block I/O on the metrics page: histograms of those who did I/O, none on a node where nobody did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from koordlet.metriccache import MetricCache
from koordlet.metrics import Registries
from koordlet.metricsadvisor.blockio import BlockIOCollector
from koordlet.metricsadvisor.buckets import BUCKET_BOUNDS
from koordlet.probes.iosnapshot import BlockIOSnapshot, IoLost
from koordlet.probes.layout import BUCKETS
from koordlet.statesinformer.cgroupindex import CgroupIndex
from koordlet.statesinformer.model import Subject, SubjectKind, Workloads

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS")


def snapshot(requests: dict[int, int]) -> BlockIOSnapshot:
    """Key -> reads of 0.5 to 1 ms."""
    n, none = len(requests), np.zeros(0, dtype=np.int64)
    hist = np.zeros((n, 2, BUCKETS), dtype=np.int64)
    hist[:, 0, 10] = list(requests.values())
    four, one = np.zeros((n, 4), dtype=np.int64), np.zeros(n, dtype=np.int64)
    return BlockIOSnapshot(
        "bpf", 1, np.array(list(requests), dtype=np.int64), one, hist * 0, hist, four, four,
        one, hist.sum(axis=(1, 2)) * 700_000, one, one, one, none, none, none, none, IoLost(),
    )  # fmt: skip


class Source:
    source = "bpf"

    def __init__(self, requests: dict[int, int]) -> None:
        self._requests = requests

    def read(self) -> BlockIOSnapshot:
        return snapshot(self._requests)


@pytest.mark.parametrize("requests", [{}, {10: 5}], ids=["nobody", "web"])
def test_who_did_io_has_a_histogram(requests: dict[int, int], tmp_path: Path) -> None:
    registries = Registries()
    registries.node = "n"
    collector = BlockIOCollector(
        Source(requests),  # type: ignore[arg-type]
        lambda: Workloads(subjects=(WEB,)),
        MetricCache(),
        registries,
        index=CgroupIndex(lambda: [("k/web", 10)]),
        sys=tmp_path,
        clock=lambda: 0.0,
    )
    collector.read()
    families = {family.name: family.samples for family in registries.external.collect()}
    buckets = [one for one in families["koordlet_block_io_seconds"] if one.name.endswith("_bucket")]
    assert not [one for one in registries.internal.collect() if one.name.endswith("provider_failures") and one.samples]
    assert [one.value for one in buckets] == ([0] * 4 + [5] * (len(BUCKET_BOUNDS) - 4) if requests else [])
    assert {one.labels["stage"] for one in buckets} == ({"device"} if requests else set())
