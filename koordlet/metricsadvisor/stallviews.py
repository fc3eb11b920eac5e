"""Pressure as a collector: its rounds, its condition, and stalled time out of PSI's `total` (spec 02 §5.13).

`total` keeps what a burst too short for `avg10` leaves behind. The Prometheus counter is the kernel's own and starts
anew with a new cgroup; `batches.stall_batch` has the same as shares of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import numpy as np

from koordlet.metrics import Registries
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.pressure import DEGREES, WIRE
from koordlet.metricsadvisor.views import container_labels, pod_labels
from koordlet.statesinformer.model import SubjectKind

NAME = "psi"
LEVELS = {SubjectKind.CONTAINER: "container", SubjectKind.POD: "pod"}


class StallViews:
    """`read` is one round; attaches `koordlet_{container,pod}_psi_stall_seconds_total`."""

    def __init__(self, advisor: MetricsAdvisor, registries: Registries, conditions: Conditions) -> None:
        self._advisor, self._conditions = advisor, conditions
        for kind, level in LEVELS.items():
            registries.view(f"{level}_psi_stall_seconds_total", lambda kind=kind: self._rows(kind))

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

    def _rows(self, kind: SubjectKind) -> Iterator[tuple[tuple[str, ...], float]]:
        reading = self._advisor.pressure
        if reading is None:
            return
        labels = container_labels if kind is SubjectKind.CONTAINER else pod_labels
        for resource, wire in WIRE.items():
            for degree in DEGREES:
                column = reading.column(resource, degree, "total").tolist()
                for subject, total in zip(reading.workloads.subjects, column, strict=True):
                    if subject.kind is kind and not isnan(total):
                        yield (*labels(subject), wire, degree), total / 1e6
