"""CPU, memory and GPU use over several windows, from one read of each series (spec 02 §7.3). Pure.

CPU is `trunc(cores * 1000)` milli-cores, memory `trunc(bytes)`. The cache stores 24-bit mantissas, so CPU is rounded up
by one bit before it is truncated: 700 milli must not become 699. An aggregated entry is `{}` while its CPU samples
cover less than half of its window, so that consumers do not mistake a fresh start for an idle node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koordlet.api.crs.device import DeviceInfo
from koordlet.api.crs.nodemetric import (
    AVG,
    P50,
    P90,
    P95,
    P99,
    USAGE_WITH_HOT_PAGE_CACHE,
    USAGE_WITH_PAGE_CACHE,
    AggregatedUsage,
    ResourceMap,
)
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import Duration
from koordlet.api.names import RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY, RESOURCE_GPU_MEMORY_RATIO
from koordlet.metriccache import Aggregation, MetricCache, Points, SeriesWindow
from koordlet.metriccache.facts import FACT_COLD_MEMORY, GpuInfo
from koordlet.metriccache.ring import Key

WIRE_KEYS = {
    AVG: Aggregation.AVG,
    P50: Aggregation.P50,
    P90: Aggregation.P90,
    P95: Aggregation.P95,
    P99: Aggregation.P99,
}
MIN_COVERED_SHARE = 0.5
ROUNDING_FACTOR = 1 + 2**-23
"""Compensates more than rounding to 24 bits can have subtracted."""


def memory_kind(cache: MetricCache, level: str, policy: str, since: float) -> str:
    """The memory series of `level` (node, pod, host_application) under NodeMetric's policy.

    If the collector of the policy's series has written nothing since `since`, this is the plain usage: without any
    memory series the node would not be reported.
    """
    plain = f"{level}_memory_usage"
    selected = {
        USAGE_WITH_PAGE_CACHE: f"{level}_memory_usage_with_page_cache",
        USAGE_WITH_HOT_PAGE_CACHE: f"{level}_memory_with_hot_page_usage",
    }.get(policy, plain)
    if policy == USAGE_WITH_HOT_PAGE_CACHE and not cache.facts.get(FACT_COLD_MEMORY, newer_than=since):
        return plain
    ring = cache.rings.get(selected)
    return selected if ring is not None and ring.newest >= since else plain


def amounts(cores: float, memory_bytes: float, devices: list[DeviceInfo] | None = None) -> ResourceMap:
    """CPU and memory in the wire format."""
    return ResourceMap(
        resources={
            "cpu": Quantity.milli(int(cores * 1000 * ROUNDING_FACTOR)),
            "memory": Quantity.of(int(memory_bytes), BINARY_SI),
        },
        devices=devices or [],
    )


class GpuSeries:
    """GPU use by the node or by pods (`level`: node or pod). Read once, reduced per window and aggregation."""

    def __init__(self, cache: MetricCache, level: str, gpus: Sequence[GpuInfo], start: float, end: float) -> None:
        self._gpus = gpus
        kinds = (f"{level}_gpu_core_usage", f"{level}_gpu_memory_usage") if gpus else ()
        self._windows: list[SeriesWindow] = [cache.window(kind, start, end) for kind in kinds]

    def by_owner(self, start: float, kinds: Sequence[Aggregation]) -> dict[Aggregation, dict[Key, list[DeviceInfo]]]:
        """Devices by owner, which is the series key without the GPU's labels. A GPU without samples is omitted."""
        by_owner: dict[Aggregation, dict[Key, list[DeviceInfo]]] = {kind: {} for kind in kinds}
        if not self._gpus:
            return by_owner
        core, memory = (window.since(start).aggregate(kinds) for window in self._windows)
        gpus = {(str(gpu.minor), gpu.uuid): gpu for gpu in self._gpus}
        for kind in kinds:
            for key in sorted(core[kind].keys() & memory[kind].keys(), key=lambda key: (key[:-2], int(key[-2]))):
                gpu = gpus.get((key[-2], key[-1]))
                if gpu is not None:
                    device = gpu_usage(gpu, core[kind][key], memory[kind][key])
                    by_owner[kind].setdefault(key[:-2], []).append(device)
        return by_owner


def gpu_usage(gpu: GpuInfo, core_percent: float, memory: float) -> DeviceInfo:
    """One GPU in the wire format. The format requires `health`; it has no meaning here."""
    ratio = int(100 * memory / gpu.memory_total) if gpu.memory_total > 0 else 0
    return DeviceInfo(
        type="gpu",
        id=gpu.uuid,
        minor=gpu.minor,
        resources={
            RESOURCE_GPU_CORE: Quantity.of(int(core_percent)),
            RESOURCE_GPU_MEMORY: Quantity.of(int(memory), BINARY_SI),
            RESOURCE_GPU_MEMORY_RATIO: Quantity.of(ratio),
        },
    )


@dataclass(frozen=True, slots=True)
class WindowedUsage:
    """CPU and memory of the node or its system over the longest window; shorter windows are slices of it."""

    cpu: Points
    memory: Points
    end: float
    gpus: GpuSeries | None = None

    @classmethod
    def read(
        cls, cache: MetricCache, cpu: str, memory: str, start: float, end: float, gpus: GpuSeries | None = None
    ) -> WindowedUsage:
        """Read each series once."""
        return cls(cache.query(cpu, start, end), cache.query(memory, start, end), end, gpus)

    def average(self, seconds: float) -> ResourceMap:
        """Mean of the last `seconds`; empty if either series has no samples."""
        return self._reduce(seconds, [Aggregation.AVG]).get(Aggregation.AVG, ResourceMap())

    def aggregated(self, duration: Duration) -> AggregatedUsage:
        """All five aggregations of one window, each `{}` while samples cover less than half of it."""
        reduced: dict[Aggregation, ResourceMap] = {}
        if self.cpu.since(self.end - duration.seconds).covered >= MIN_COVERED_SHARE * duration.seconds:
            reduced = self._reduce(duration.seconds, list(WIRE_KEYS.values()))
        usage = {key: reduced.get(kind, ResourceMap()) for key, kind in WIRE_KEYS.items()}
        return AggregatedUsage(usage=usage, duration=duration)

    def _reduce(self, seconds: float, kinds: list[Aggregation]) -> dict[Aggregation, ResourceMap]:
        start = self.end - seconds
        cpu = self.cpu.since(start)
        memory = self.memory.since(start)
        if not len(cpu.values) or not len(memory.values):
            return {}
        cores = cpu.aggregates(kinds)
        used = memory.aggregates(kinds)
        devices = self.gpus.by_owner(start, kinds) if self.gpus is not None else {}
        return {kind: amounts(cores[kind], used[kind], devices.get(kind, {}).get((), [])) for kind in kinds}
