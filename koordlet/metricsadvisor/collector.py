"""What collectors share: `CollectorOutput` commits figures and reports failures, `ProbeCollector` reads a probe.

A round of a probe's collector is always the same: read the cumulative snapshot, and map cgroup ids to subjects.
`ProbeCollector` carries that once; a subclass derives figures (`derive`) from the difference over the window. They are
derived when they are read, because those of many rounds never are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.stalls.window import Snapshot, SnapshotWindow
from koordlet.probes.columns import Ints
from koordlet.probes.loading.frame import SourceOf
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Workloads

log = get_logger(__name__)

NO_SOURCE = "none"


class CollectorOutput:
    """Commits a collector's figures to the metric cache, and reports its failures to the log and the metrics.

    `name` is the collector's name in metrics. Each failure is counted, and logged once with `message`."""

    def __init__(
        self, name: str, cache: MetricCache, registries: Registries, message: str = "A source gives no figures"
    ) -> None:
        self._name = name
        self._cache = cache
        self._registries = registries
        self._message = message

    def commit(self, batch: Batch) -> bool:
        """Whether the cache accepted the batch."""
        try:
            self._cache.commit(batch)
        except SeriesError as error:
            self.fail("series", str(error))
            return False
        return True

    def fail(self, cause: str, error: str, *, source: str = "", log_key: str = "") -> None:
        """Report that figures are missing. `source` replaces the collector's name where it reads several sources;
        failures of equal `log_key` (the error by default) are logged once."""
        name = source or self._name
        self._registries.count("collector_failures_total", name, cause)
        log.once(
            f"collector:{name}:{cause}:{log_key or error}", self._message, collector=name, cause=cause, error=error
        )


class KeyedSnapshot(Snapshot, Protocol):
    """A snapshot of a probe, as far as `ProbeCollector` uses it."""

    @property
    def keys(self) -> Ints:
        """Cgroup ids, or special keys."""


S = TypeVar("S", bound=KeyedSnapshot)
F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What all collectors of probes use."""

    workloads: Callable[[], Workloads]
    registries: Registries
    index: CgroupIndex
    """Subjects of the cgroup ids that the probes count by."""
    clock: Callable[[], float] = boot_clock


class ProbeCollector(ABC, Generic[S, F]):
    """Figures by subject of one probe. `read` is one round; without a source it does nothing."""

    def __init__(self, context: ProbeContext, window_seconds: float) -> None:
        self.context = context
        self.window: SnapshotWindow[S] = SnapshotWindow(window_seconds)
        self._figures: Mapping[str, F] = {}
        self._span: tuple[S, S, float] | None = None
        """What `figures` is to be derived from; None once it was."""
        self._source: SourceOf[S] | None = None
        self._relaxed = False
        self._skipped = False

    def relax(self, relaxed: bool) -> None:
        """Whether every other round is enough, by the consumer that evaluates the figures."""
        self._relaxed = relaxed

    def attach(self, source: SourceOf[S] | None) -> None:
        """Read `source` from now on: a probe may be opened after its collector was made."""
        self._source = source

    @property
    def source(self) -> str:
        """Where figures come from: ``bpf``, the name of files, ``none``."""
        return NO_SOURCE if self._source is None else self._source.source

    @property
    def latest(self) -> S | None:
        """The newest snapshot: cumulative."""
        return self.window.latest

    @property
    def figures(self) -> Mapping[str, F]:
        """Subject key -> figures of the window that ended with the last reading; replaced as a whole."""
        span, self._span = self._span, None
        if span is not None:
            self._figures = self.derive(*span)
        return self._figures

    def read(self) -> None:
        """One round; every other one is skipped while relaxed."""
        self._skipped = self._relaxed and not self._skipped
        if not self._skipped:
            self.read_source()

    def read_source(self) -> None:
        """Read the probe."""
        if self._source is None:
            return
        snapshot = self._source.read()
        self.refresh(snapshot, self.context.workloads(), self.context.clock())
        self.window.push(snapshot)
        self._span = self.window.span() or self._span

    def refresh(self, snapshot: S, workloads: Workloads, now: float) -> None:
        """Let the index look up the snapshot's cgroup ids."""
        self.context.index.refresh(workloads, now, cgroup_ids(snapshot.keys))

    @abstractmethod
    def derive(self, old: S, new: S, seconds: float) -> Mapping[str, F]:
        """The figures between two snapshots, by subject key."""


def cgroup_ids(keys: Ints) -> Iterable[int]:
    """The keys that are cgroup ids."""
    ids: list[int] = keys[keys > 0].tolist()
    return ids
