"""Use, throttling and sums of pods, containers, QoS classes and host applications (spec 02 §5.3, §5.4, §5.6). Pure.

All figures are columns: row i belongs to subject i, NaN means no figure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.metricsadvisor.usage.node import ResourceUse
from koordlet.metricsadvisor.usage.readings import Floats, Pairing, Readings
from koordlet.statesinformer.pods.model import SubjectKind


@dataclass(frozen=True, slots=True)
class WorkloadUse:
    """float64[subjects] each."""

    cores: Floats
    memory: Floats
    """bytes without page cache: inactive_anon + active_anon + unevictable"""
    memory_with_page_cache: Floats
    throttled: Floats
    """throttled periods over periods, 0 when no period ended"""


def workload_use(new: Readings, pairing: Pairing) -> WorkloadUse:
    """Figures of this tick. Memory needs no earlier reading, but a subject at first sight gets neither figure, so that
    means of CPU and of memory are over the same samples."""
    cores = pairing.rate("cpu_usage_ns") / 1e9
    usage = new.column("memory_inactive_anon") + new.column("memory_active_anon") + new.column("memory_unevictable")
    cached = usage + new.column("memory_inactive_file") + new.column("memory_active_file")
    seen = ~np.isnan(cores)
    periods, throttled = pairing.delta("nr_periods"), pairing.delta("nr_throttled")
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(periods > 0, np.minimum(throttled / periods, 1.0), np.where(np.isnan(periods), np.nan, 0.0))
    return WorkloadUse(cores, np.where(seen, usage, np.nan), np.where(seen, cached, np.nan), ratio)


def kind_mask(readings: Readings, *kinds: SubjectKind) -> NDArray[np.bool_]:
    """bool[subjects]: the subjects of these kinds."""
    mask = np.zeros(len(readings.workloads.subjects), dtype=bool)
    for kind in kinds:
        mask[readings.workloads.row_arrays[kind]] = True
    return mask


def total(use: WorkloadUse, rows: NDArray[np.bool_]) -> ResourceUse:
    """Sum over rows; subjects without a figure add nothing."""
    return ResourceUse(float(np.nansum(use.cores[rows])), float(np.nansum(use.memory[rows])))


def by_qos(use: WorkloadUse, readings: Readings) -> dict[str, ResourceUse]:
    """Sums over pods by QoS class."""
    workloads = readings.workloads
    pods = workloads.row_arrays[SubjectKind.POD]
    sums: dict[str, list[float]] = {}
    for row, cores, memory in zip(pods.tolist(), use.cores[pods].tolist(), use.memory[pods].tolist(), strict=True):
        if cores == cores:  # not NaN; memory may be NaN where no file has it
            both = sums.setdefault(workloads.subjects[row].qos, [0.0, 0.0])
            both[0] += cores
            both[1] += memory if memory == memory else 0.0
    return {qos: ResourceUse(*both) for qos, both in sums.items()}
