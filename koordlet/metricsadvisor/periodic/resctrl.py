"""Last-level cache occupancy and memory bandwidth of the QoS groups LSR, LS and BE through resctrl (spec 02 §5.14).

Occupancy is a level. The bandwidth files are counters; they become bytes per second between two readings of the same
group (compared by inode: a recreated group is a new baseline). Hardware counters are narrow, and older
kernels show when they wrap, so a counter that went back is compared with the known widths. A group that cannot be read
costs its own figures. Needed: the CPU's monitoring flags, an Intel or AMD CPU, and a mounted resctrl with a valid root
schemata; each missing one is a condition. Bounded by 3 groups x cache domains x 3 files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from koordlet.app.clock import boot_clock
from koordlet.metriccache import Batch, MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.prometheus import Registries
from koordlet.system.errors import KernelFileError
from koordlet.system.kernel import Feature
from koordlet.system.resctrl import MonitoringData, group_identity, read_monitoring, read_schemata

NAME = "resctrl"
GROUPS = ("LSR", "LS", "BE")
WIDTHS = (24, 32, 44, 62)
"""Bits of bandwidth counters: Intel's first two, AMD's, and the width to which the kernel extends them."""
MAX_BYTES_PER_SECOND = 1 << 40
"""More than any memory reaches: a larger difference means that the counter was reset, not that it wrapped."""


@dataclass(frozen=True, slots=True)
class GroupReading:
    """Counters of one group at one moment, by cache id; `identity` is the directory's inode."""

    at: float
    identity: int
    domains: Mapping[int, MonitoringData]


@dataclass(frozen=True, slots=True)
class DomainUse:
    """One group in one L3 domain; None where the hardware returned no value, and for rates in the first reading."""

    llc_bytes: int | None
    local_rate: float | None
    total_rate: float | None
    """Rates are in bytes per second."""


def counter_delta(old: int, new: int, seconds: float) -> int | None:
    """Bytes counted from `old` to `new`; None for a counter that was reset, or when no time passed.

    A counter that went back has wrapped if `old` was in the upper half of the smallest known width that holds it, and
    if memory can transfer the resulting difference in `seconds`.
    """
    if seconds <= 0:
        return None
    if new < old:
        top = next((1 << width for width in WIDTHS if old < 1 << width), None)
        if top is None or old < top // 2:
            return None
        new += top
    return new - old if new - old <= MAX_BYTES_PER_SECOND * seconds else None


def use(old: GroupReading | None, new: GroupReading) -> dict[int, DomainUse]:
    """Use of every domain of `new`. Pure."""
    same = old is not None and old.identity == new.identity
    before = old.domains if same and old is not None else {}
    seconds = new.at - old.at if old is not None else 0.0
    return {
        cache: DomainUse(
            now.llc_occupancy,
            _rate(old_data.mbm_local_bytes if (old_data := before.get(cache)) else None, now.mbm_local_bytes, seconds),
            _rate(old_data.mbm_total_bytes if old_data else None, now.mbm_total_bytes, seconds),
        )
        for cache, now in new.domains.items()
    }


def _rate(old: int | None, new: int | None, seconds: float) -> float | None:
    delta = None if old is None or new is None else counter_delta(old, new, seconds)
    return None if delta is None else delta / seconds


class ResctrlCollector:
    """`read` is one round; `root` is the mount point, `feature`: whether the CPU can monitor."""

    def __init__(
        self,
        root: Path,
        feature: Feature,
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._root = root
        self._feature = feature
        self._conditions = conditions
        self._clock = clock
        self._output = CollectorOutput(NAME, cache, registries, "A resctrl group gives no figures")
        self._last: dict[str, GroupReading] = {}
        self.groups: Mapping[str, Mapping[int, DomainUse]] = {}
        """QoS group -> L3 cache id -> use in the last round; only groups that exist."""
        registries.view("resctrl_llc_occupancy", self._occupancy)
        registries.view("resctrl_memory_bandwidth", self._bandwidth)

    def read(self) -> None:
        """Read all groups and commit their figures."""
        reason = self._problem()
        if reason:
            self._conditions.down(NAME, reason, NAME)
            self.groups = {}
            self._last = {}
            return
        readings = {name: reading for name in GROUPS if (reading := self._group(name)) is not None}
        self.groups = {name: use(self._last.get(name), reading) for name, reading in readings.items()}
        self._last = readings
        if not readings:
            self._conditions.down(NAME, f"none of the groups {', '.join(GROUPS)} can be monitored", NAME)
            return
        self._conditions.up(NAME, NAME)
        self._output.commit(self._batch())

    def _problem(self) -> str:
        """Why nothing can be read; empty if it can."""
        if not self._feature:
            return self._feature.reason
        try:
            schemata = read_schemata(self._root)
        except KernelFileError as error:
            return str(error)
        if schemata is None:
            return f"{self._root} is not a mounted resctrl file system"
        return "" if schemata.valid else f"{self._root}/schemata has no usable L3 and MB lines"

    def _group(self, name: str) -> GroupReading | None:
        path = self._root / name
        try:
            identity = group_identity(path)
            domains = None if identity is None else read_monitoring(path)
        except (OSError, KernelFileError) as error:
            self._output.fail("unreadable", str(error))
            return None
        # A group is made when the first pod of its class is bound to it.
        return None if identity is None or domains is None else GroupReading(self._clock(), identity, domains)

    def _batch(self) -> Batch:
        batch = Batch(self._clock())
        for labels, value in self._occupancy():
            batch.add("resctrl_resource_llc", value, labels[1], labels[0])
        for (cache, qos, kind), value in self._bandwidth():
            batch.add("resctrl_resource_mb", value, qos, cache, kind)
        return batch

    def _occupancy(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for qos, domains in self.groups.items():
            for cache, domain in domains.items():
                if domain.llc_bytes is not None:
                    yield (str(cache), qos), domain.llc_bytes

    def _bandwidth(self) -> Iterator[tuple[tuple[str, str, str], float]]:
        for qos, domains in self.groups.items():
            for cache, domain in domains.items():
                rates = (("mbm_local_bytes", domain.local_rate), ("mbm_total_bytes", domain.total_rate))
                for kind, rate in rates:
                    if rate is not None:
                        yield (str(cache), qos, kind), rate
