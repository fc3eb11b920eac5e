"""The collector of pressure stall information of pods and containers (spec 02 §5.13).

Stalled time comes from PSI's `total`, which also contains bursts too short for `avg10`. The Prometheus counter is the
kernel's own and restarts with a new cgroup; `stalls` has the same as shares of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from koordlet.app.clock import boot_clock
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.labels import subject_labels
from koordlet.metricsadvisor.usage.batches import pressure_batch
from koordlet.metricsadvisor.usage.pressure import TOTALS, WIRE, PressureReading, stall_shares
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.prometheus import Groups, Registries
from koordlet.statesinformer.pods.model import SubjectKind, Workloads

NAME = "psi"
RETRY_ROUNDS = 6
"""While no cgroup has pressure files, they are looked for once in this many rounds."""
STALL_LABELS = tuple((WIRE[resource], degree) for resource, degree, _ in TOTALS)
"""psi_resource_type, psi_degree"""
LEVELS = {SubjectKind.CONTAINER: "container", SubjectKind.POD: "pod"}


class PressureCollector:
    """`read` is one round. `psi`: whether the kernel has pressure stall information."""

    def __init__(
        self,
        reader: TickReader,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        psi: bool,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._reader = reader
        self._workloads = workloads
        self._conditions = conditions
        self._psi = psi
        self._clock = clock
        self._output = CollectorOutput("pressure", cache, registries)
        self._rounds_to_skip = 0
        self.reading: PressureReading | None = None
        """The last reading."""
        self.stalls: Mapping[tuple[str, str], Mapping[str, float]] = {}
        """(resource, degree) -> subject key -> share of time stalled since the reading before."""
        for kind, level in LEVELS.items():
            registries.view(f"{level}_psi_stall_seconds_total", lambda kind=kind: self._rows(kind), grouped=2)

    def read(self) -> None:
        """Read pressure, and report whether this machine has any."""
        self._read()
        reading = self.reading
        if reading is None:
            self._conditions.down(NAME, "this kernel has no pressure stall information", "cgroup")
        elif reading.workloads.subjects and np.isnan(reading.column("cpu", "some", "total")).all():
            self._conditions.down(NAME, "no cgroup has pressure files: neither cpuacct nor a unified tree", "cgroup")
        else:
            self._conditions.up(NAME, "cgroup")

    def _read(self) -> None:
        """Nothing on a kernel without PSI. Where no cgroup has pressure files, as on v1 without a unified tree, the
        round is skipped most of the time: it would try to open a thousand files that do not exist."""
        self._rounds_to_skip = max(self._rounds_to_skip - 1, 0)
        if not self._psi or self._rounds_to_skip:
            return
        workloads = self._workloads()
        table = self._reader.read_pressure(workloads)
        for error in table.errors:
            self._output.fail("unreadable", str(error))
        reading = PressureReading(self._clock(), workloads, table)
        self.stalls = stall_shares(self.reading, reading)
        self.reading = reading
        absent = all(np.isnan(column).all() for column in table.columns.values())
        if workloads.subjects and not table.errors and absent:
            self._rounds_to_skip = RETRY_ROUNDS
        self._output.commit(pressure_batch(reading))

    def _rows(self, kind: SubjectKind) -> Groups:
        reading = self.reading
        if reading is None:
            return
        seconds = (reading.table_of(TOTALS) / 1e6).tolist()
        for row in reading.workloads.rows[kind]:
            yield subject_labels(kind, reading.workloads.subjects[row]), STALL_LABELS, seconds[row]
