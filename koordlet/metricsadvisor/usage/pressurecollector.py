"""Pressure as a collector: its rounds, its condition, and stalled time out of PSI's `total` (spec 02 §5.13).

`total` keeps what a burst too short for `avg10` leaves behind. The Prometheus counter is the kernel's own and starts
anew with a new cgroup; `batches.stall_batch` has the same as shares of time.
"""

from __future__ import annotations

import numpy as np

from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.usage.pressure import TOTALS, WIRE
from koordlet.metricsadvisor.views import container_labels, pod_labels
from koordlet.prometheus import Groups, Registries
from koordlet.statesinformer.pods.model import SubjectKind

NAME = "psi"
STALL_LABELS = tuple((WIRE[resource], degree) for resource, degree, _ in TOTALS)
"""psi_resource_type, psi_degree"""
LEVELS = {SubjectKind.CONTAINER: "container", SubjectKind.POD: "pod"}


class StallViews:
    """`read` is one round; attaches `koordlet_{container,pod}_psi_stall_seconds_total`."""

    def __init__(self, advisor: MetricsAdvisor, registries: Registries, conditions: Conditions) -> None:
        self._advisor, self._conditions = advisor, conditions
        for kind, level in LEVELS.items():
            registries.view(f"{level}_psi_stall_seconds_total", lambda kind=kind: self._rows(kind), grouped=2)

    def read(self) -> None:
        """Read pressure, and judge whether this machine gives any."""
        self._advisor.read_pressure()
        reading = self._advisor.pressure
        if reading is None:
            self._conditions.down(NAME, "this kernel has no pressure stall information", "cgroup")
        elif reading.workloads.subjects and np.isnan(reading.column("cpu", "some", "total")).all():
            self._conditions.down(NAME, "no cgroup has pressure files: neither cpuacct nor a unified tree", "cgroup")
        else:
            self._conditions.up(NAME, "cgroup")

    def _rows(self, kind: SubjectKind) -> Groups:
        reading = self._advisor.pressure
        if reading is None:
            return
        labels = container_labels if kind is SubjectKind.CONTAINER else pod_labels
        seconds = (reading.table_of(TOTALS) / 1e6).tolist()
        for row in reading.workloads.rows[kind]:
            yield labels(reading.workloads.subjects[row]), STALL_LABELS, seconds[row]
