"""Use, throttling and sums of pods, containers, QoS classes and host applications (spec 02 §5.3, §5.4, §5.6). Pure.

All of it is columns: row i belongs to subject i, NaN is "no figure".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordlet.metricsadvisor.usage.node import Use
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
    """Figures of this tick. Memory needs no earlier reading, yet a subject at first sight gives none of either, so
    that a mean of CPU and a mean of memory are over the same samples."""
    cores = pairing.rate("cpu_usage_ns") / 1e9
    usage = new.column("memory_inactive_anon") + new.column("memory_active_anon") + new.column("memory_unevictable")
    cached = usage + new.column("memory_inactive_file") + new.column("memory_active_file")
    seen = ~np.isnan(cores)
    periods, throttled = pairing.delta("nr_periods"), pairing.delta("nr_throttled")
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(periods > 0, np.minimum(throttled / periods, 1.0), np.where(np.isnan(periods), np.nan, 0.0))
    return WorkloadUse(cores, np.where(seen, usage, np.nan), np.where(seen, cached, np.nan), ratio)


def kind_mask(readings: Readings, *kinds: SubjectKind) -> NDArray[np.bool_]:
    """bool[subjects]: which are of these kinds."""
    mask = np.zeros(len(readings.workloads.subjects), dtype=bool)
    for kind in kinds:
        mask[readings.workloads.row_arrays[kind]] = True
    return mask


def total(use: WorkloadUse, rows: NDArray[np.bool_]) -> Use:
    """Sum over rows; one without a figure adds nothing."""
    return Use(float(np.nansum(use.cores[rows])), float(np.nansum(use.memory[rows])))


def by_qos(use: WorkloadUse, readings: Readings) -> dict[str, Use]:
    """Sums over pods by QoS class."""
    workloads = readings.workloads
    pods = workloads.row_arrays[SubjectKind.POD]
    sums: dict[str, list[float]] = {}
    for row, cores, memory in zip(pods.tolist(), use.cores[pods].tolist(), use.memory[pods].tolist(), strict=True):
        if cores == cores:  # not NaN, nor is memory then, but where there is none to read
            both = sums.setdefault(workloads.subjects[row].qos, [0.0, 0.0])
            both[0] += cores
            both[1] += memory if memory == memory else 0.0
    return {qos: Use(*both) for qos, both in sums.items()}
