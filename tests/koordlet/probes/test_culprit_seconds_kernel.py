"""The seconds of a culprit in a verdict, compared with the kernel's figure for the same time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from koordlet.api.sloconfig.interference import DEFAULT, InterferenceThresholds
from koordlet.interference.detector import Detector
from koordlet.interference.model import Cause, Evidence, WaitResource
from koordlet.interference.sources import MemorySource
from koordlet.metricsadvisor.stalls.memstall import by_subject
from koordlet.probes.memstall.probe import MemStall
from koordlet.probes.memstall.snapshot import diff
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind
from koordlet.system.cgroup.tree import cgroup_id
from tests.koordlet.probes.rows import row_of
from tests.present import present

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

LIMIT = 24 << 20
CYCLE = """
import mmap, os, sys
os.sched_setaffinity(0, {0})
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for _ in range(int(sys.argv[1])):
    for begin in range(0, len(memory), 1 << 20):
        for i in range(begin, begin + (1 << 20), 4096):
            memory[i] = 1
        memory.madvise(mmap.MADV_FREE, begin, 1 << 20)
"""
STRICT = msgspec.structs.replace(DEFAULT, memory=InterferenceThresholds(lost_percent=1))


def container(name: str, qos: str) -> Subject:
    return Subject(SubjectKind.CONTAINER, f"containerd://{name}", name, name, qos=qos, pod_uid=name, pod_name=name)


def test_seconds_of_a_culprit_are_the_kernels_whatever_the_window(
    stalls: MemStall, cgroup_child: Callable[[str], Any], run_in: Callable[..., Any], pressure_total: Any
) -> None:
    """Two under one limit: all that PSI counts for one of them has a culprit, itself or the other."""
    limited = cgroup_child("limited")
    subjects = container("web", "LS"), container("batch", "BE")
    groups = [limited.child(subject.name) for subject in subjects]
    file = "memory.max" if (limited.path("memory") / "memory.max").exists() else "memory.limit_in_bytes"
    limited.write("memory", file, LIMIT)
    owners = {cgroup_id(group.path("cpu")): owner_of(subject) for group, subject in zip(groups, subjects, strict=True)}
    limits = {cgroup_id(limited.path("memory")): Owner("qos", "limited")}
    before = stalls.read()
    ends = [run_in(group, CYCLE, rounds) for group, rounds in zip(groups, ("2", "4"), strict=True)]
    assert [process.wait(300) for process in ends] == [0, 0]
    after = stalls.read()
    seconds = (after.time_ns - before.time_ns) / 1e9
    stalled = pressure_total(groups[0])

    def owner(key: int) -> Owner:
        return owners.get(key) or limits.get(key) or Owner("gone", str(key))

    happened = diff(before, after)
    window = by_subject(happened, seconds, owner, owner)
    keys = tuple(subject.key for subject in subjects)
    rows = {key: row for row, key in enumerate(keys)}
    frame: Any = SimpleNamespace(subjects=subjects, keys=keys, row_of=rows, ran=np.zeros(2), pressure={})
    result = MemorySource(lambda: window, lambda: "bpf").evidence(frame)
    assert result is not None
    evidence = Evidence(subjects, 3.0, {WaitResource.MEMORY: result})  # the CPU's window, which is not memory's
    verdicts = Detector().step(evidence, 0.0, STRICT).verdicts
    [culprit] = [culprit for verdict in verdicts if verdict.cause is Cause.NEIGHBOUR for culprit in verdict.culprits]
    assert culprit.owner.name == "batch"
    of_all = culprit.seconds / culprit.share * seconds
    # One task, as in test_mem_stall_kernel: PSI's clock begins a little before the probe's and ends a little after it.
    count = int(happened.hist[present(row_of(happened, cgroup_id(groups[0].path("cpu"))))].sum())
    assert 0.75 * stalled - 0.01 <= of_all <= 1.1 * stalled + 0.01 + count * 5e-6
