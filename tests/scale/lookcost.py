"""The CPU time of a look at the short evidence (`koordlet.interference.shortevidence`) with tables of a given size,
while no container is delayed: the real code over arrays of the maps' layout, so that 64 CPUs can be measured on two."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference.attribution import WaitShares
from koordlet.interference.cadence import LOOK_SECONDS
from koordlet.interference.detector import Detector
from koordlet.interference.rows import ContainerRows
from koordlet.interference.shortevidence import ShortCpuEvidence
from koordlet.probes.layouts import SLOT_STATS
from koordlet.probes.schedlatency.tables import Tables
from koordlet.statesinformer.pods.model import Subject, SubjectKind

LOOKS = 200
FIRST_ID = 100
OTHERS_PER_CONTAINER = 0.5
"""Cgroups that are no containers: pods, services."""


def simulated_percent(cpus: int, containers: int) -> float:
    """Percent of a core, at two looks per second."""
    groups = round(containers * (1 + OTHERS_PER_CONTAINER))
    slots = 1 << groups.bit_length()
    keys = np.zeros(slots, dtype=np.int64)
    keys[:groups] = np.arange(FIRST_ID, FIRST_ID + groups)
    tables: Any = Tables.__new__(Tables)  # its maps would need the kernel
    tables._numbers = np.zeros((cpus, slots), dtype=SLOT_STATS).view(np.int64).reshape(cpus, slots, -1)
    tables._slots, tables._order = SimpleNamespace(keys=keys.copy), None
    subjects = tuple(
        Subject(SubjectKind.CONTAINER, f"containerd://{place}", f"kubepods/{place}", "main", qos="LS")
        for place in range(containers)
    )
    rows = ContainerRows(np.arange(FIRST_ID, FIRST_ID + containers), np.arange(containers), containers)
    reading = SimpleNamespace(rows=rows, ran=np.full(containers, 0.1), steal=None)
    source: Any = SimpleNamespace(
        latest=(SimpleNamespace(subjects=subjects), reading), shares=WaitShares.none(containers)
    )
    advisor: Any = SimpleNamespace(sched_latency=tables)
    short = ShortCpuEvidence(advisor, source, Detector().alarm_threshold, lambda directory: None)
    short.look(DEFAULT, 0.0)
    started = time.thread_time()
    for second in range(LOOKS):
        short.look(DEFAULT, float(second))
    assert not short.noticed
    return 100 * (time.thread_time() - started) / LOOKS / LOOK_SECONDS
