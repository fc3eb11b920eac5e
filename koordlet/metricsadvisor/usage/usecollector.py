"""The tick: reads the use of the node and of all workloads, derives figures, commits them (spec 02 §5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from koordlet.app.clock import boot_clock
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.usage.batches import use_batch
from koordlet.metricsadvisor.usage.besteffort import batch_request
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.metricsadvisor.usage.readings import Readings
from koordlet.metricsadvisor.usage.snapshot import UsageSnapshot, derive
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import PodMeta, Workloads

MAX_AGE_TICKS = 20
"""An older reading is no baseline: a mean over a suspend or a long stall of the process is not a sample."""


@dataclass(frozen=True, slots=True)
class UseOptions:
    """What a tick reports."""

    page_cache: bool = False
    """Commit memory with page cache, too."""
    system_max_age_s: float = 10.0
    """System use is not derived from readings further apart."""


class UseCollector:
    """`tick` is one round. `node_of_cpu` returns the NUMA node of each CPU; `pods_known` whether the list of pods is
    complete, without which the system's part of the use is unknown."""

    def __init__(
        self,
        reader: TickReader,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        node_of_cpu: Callable[[], Mapping[int, int]],
        pods_known: Callable[[], bool],
        options: UseOptions,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._reader = reader
        self._workloads = workloads
        self._tick_s = cache.tick
        self._node_of_cpu = node_of_cpu
        self._pods_known = pods_known
        self._options = options
        self._clock = clock
        self._output = CollectorOutput("use", cache, registries)
        self._readings: Readings | None = None
        self._requested: tuple[Mapping[str, PodMeta], int] | None = None
        """The pods of the last tick and their `batch_request`."""
        self.snapshot: UsageSnapshot | None = None
        """The figures of the last tick."""

    @property
    def started(self) -> bool:
        """Whether figures of the node exist."""
        return self.snapshot is not None and self.snapshot.node is not None

    def tick(self) -> None:
        """Read everything; derive and commit figures when the previous reading is recent."""
        old, new = self._readings, self._reader.read(self._workloads(), self._clock())
        self._readings = new
        for source, error in self._reader.errors.items():
            self._output.fail("unreadable", error, source=source)
        if old is None or not 0 < new.at - old.at <= MAX_AGE_TICKS * self._tick_s:
            return
        snapshot = derive(old, new, self._node_of_cpu(), self._batch_request(new.workloads))
        if new.at - old.at > self._options.system_max_age_s or not self._pods_known():
            snapshot = replace(snapshot, system=None, system_numa={})
        self.snapshot = snapshot
        self._output.commit(use_batch(snapshot, page_cache=self._options.page_cache))

    def _batch_request(self, workloads: Workloads) -> int:
        """Summed once per list of pods."""
        if self._requested is None or self._requested[0] is not workloads.pods:
            self._requested = workloads.pods, batch_request(workloads.pods.values())
        return self._requested[1]
