"""Pressure stall information of pods and containers (spec 02 §5.13). Pure.

`avg10` goes to the metric cache with Koordinator's labels. Stalls between two readings come from `total`, which also
contains bursts that are too short for `avg10`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.cgroup.batch import CgroupTable

WIRE = {"cpu": "cpu", "memory": "mem", "io": "io"}
DEGREES = ("some", "full")
PRECISIONS = ("avg10", "avg60", "avg300")
AVERAGES = tuple((resource, degree, precision) for resource in WIRE for degree in DEGREES for precision in PRECISIONS)
TOTALS = tuple((resource, degree, "total") for resource in WIRE for degree in DEGREES)


@dataclass(frozen=True, slots=True)
class PressureReading:
    """Pressure of all subjects at one moment; row i belongs to `workloads.subjects[i]`."""

    at: float
    workloads: Workloads
    table: CgroupTable

    def column(self, resource: str, degree: str, value: str) -> Floats:
        """Percent (avg*) or microseconds (total); NaN where absent."""
        column = self.table.columns.get(f"{resource}_{degree}_{value}")
        return np.full(len(self.table.dirs), np.nan) if column is None else column

    def table_of(self, columns: Sequence[tuple[str, str, str]]) -> Floats:
        """float64[subjects, columns], for `AVERAGES` or `TOTALS`."""
        return np.stack([self.column(*column) for column in columns], axis=1)

    def full_supported(self, resource: str) -> Floats:
        """1 where the file has a `full` line, 0 where it has none, NaN without the file."""
        some, full = (self.column(resource, degree, "total") for degree in DEGREES)
        return np.where(np.isnan(some), np.nan, (~np.isnan(full)).astype(float))


def stall_shares(old: PressureReading | None, new: PressureReading) -> dict[tuple[str, str], dict[str, float]]:
    """(resource, degree) -> subject key -> share of the time since `old` that was stalled, 0..1."""
    if old is None or new.at <= old.at or not old.workloads.subjects:
        return {}
    keys = [subject.key for subject in new.workloads.subjects]
    row_of = {cgroup: row for row, cgroup in enumerate(_cgroups(old))}
    earlier = np.array([row_of.get(cgroup, -1) for cgroup in _cgroups(new)], dtype=np.intp)
    shares: dict[tuple[str, str], dict[str, float]] = {}
    for resource, degree, total in TOTALS:
        was, now = (reading.column(resource, degree, total) for reading in (old, new))
        stalled = np.where(earlier >= 0, now - was[earlier], np.nan)
        rows = np.flatnonzero(stalled >= 0)  # false for NaN
        if len(rows):
            share = np.minimum(stalled[rows] / 1e6 / (new.at - old.at), 1.0)
            shares[resource, degree] = dict(zip([keys[row] for row in rows], share.tolist(), strict=True))
    return shares


def _cgroups(reading: PressureReading) -> Iterator[tuple[str, int]]:
    """(subject key, cgroup id) of each row."""
    ids = reading.table.cgroup_id.tolist()
    return zip([subject.key for subject in reading.workloads.subjects], ids, strict=True)
