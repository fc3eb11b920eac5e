"""Block I/O on the metrics page: histograms of containers with I/O, none on a node without I/O."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordlet.metricsadvisor.collector import ProbeContext
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS
from koordlet.probes.blockio.snapshot import BlockIOSnapshot, IoLosses
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.layouts import BUCKETS
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.devices.blockdev import device_number

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS")


def snapshot(requests: dict[tuple[int, int], int]) -> BlockIOSnapshot:
    """(key, disk) -> reads of 0.5 to 1 ms."""
    n = len(requests)
    hist = np.zeros((n, 2, BUCKETS), dtype=np.int64)
    hist[:, 0, 10] = list(requests.values())
    four, zeros = np.zeros((n, 4), dtype=np.int64), np.zeros(n, dtype=np.int64)
    keys, disks = (np.array([pair[at] for pair in requests], dtype=np.int64) for at in (0, 1))
    return BlockIOSnapshot(
        "bpf", 1, keys, disks, hist * 0, hist, four, four,
        zeros, hist.sum(axis=(1, 2)) * 700_000, zeros, zeros, zeros, CulpritMatrix.empty(), IoLosses(),
    )  # fmt: skip


class Source:
    source = "bpf"

    def __init__(self, readings: tuple[dict[tuple[int, int], int], ...]) -> None:
        self._readings = iter(readings)

    def read(self) -> BlockIOSnapshot:
        return snapshot(next(self._readings))


def samples(sys: Path, *readings: dict[tuple[int, int], int]) -> list[Any]:
    """Of `koordlet_block_io_seconds`, on the last of pages of these readings."""
    registries = Registries()
    registries.node = "n"
    index = CgroupIndex(lambda: [("k/web", 10)])
    context = ProbeContext(lambda: Workloads(subjects=(WEB,)), registries, index, clock=lambda: 0.0)
    collector = BlockIOCollector(context, sys=sys)
    collector.attach(Source(readings))  # type: ignore[arg-type]
    for _ in readings:
        collector.read()
        families = {family.name: family.samples for family in registries.external.collect()}
    assert not [
        metric
        for metric in registries.internal.collect()
        if metric.name.endswith("provider_failures") and metric.samples
    ]
    return families["koordlet_block_io_seconds"]


@pytest.mark.parametrize("requests", [{}, {(10, 0): 5}], ids=["none", "web"])
def test_containers_with_io_have_a_histogram(requests: dict[tuple[int, int], int], tmp_path: Path) -> None:
    buckets = [sample for sample in samples(tmp_path, requests) if sample.name.endswith("_bucket")]
    assert [bucket.value for bucket in buckets] == ([0] * 4 + [5] * (len(BUCKET_BOUNDS) - 4) if requests else [])
    assert {bucket.labels["stage"] for bucket in buckets} == ({"device"} if requests else set())


def test_each_disk_has_its_own_histogram(tmp_path: Path) -> None:
    disk, gone = device_number("8:16"), device_number("253:0")
    (tmp_path / "devices/sdb").mkdir(parents=True)
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/8:16").symlink_to("../../devices/sdb")
    histograms = samples(tmp_path, {(10, disk): 5, (10, gone): 2})
    counts = {sample.labels["device"]: sample.value for sample in histograms if sample.name.endswith("_count")}
    assert counts == {"sdb": 5, "253:0": 2}
    sums = {sample.labels["device"]: sample.value for sample in histograms if sample.name.endswith("_sum")}
    assert sums == {"sdb": pytest.approx(5 * 0.0007), "253:0": pytest.approx(2 * 0.0007)}


@pytest.mark.parametrize(
    ("between", "counted"),
    [pytest.param({(10, 0): 1}, 5 + 2 - 1, id="went back"), pytest.param({(10, 1): 1}, 2, id="another disk")],
)
def test_counters_of_a_removed_disk_are_not_kept(
    between: dict[tuple[int, int], int], counted: int, tmp_path: Path
) -> None:
    counters = samples(tmp_path, {(10, 0): 5}, between, {(10, 0): 2})
    assert [sample.value for sample in counters if sample.name.endswith("_count")] == [counted]
