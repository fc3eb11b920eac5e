"""Schedule latency on the metrics page: a row a container, whole histograms or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.stalls.attribution import group
from koordlet.metricsadvisor.stalls.buckets import BUCKET_BOUNDS
from koordlet.metricsadvisor.views import Views
from koordlet.probes.layouts import BUCKETS
from koordlet.probes.openprobes import ProbeSet
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind

WEB = Subject(SubjectKind.CONTAINER, "containerd://web", "k/web", "web", qos="LS")
JOB = Subject(SubjectKind.CONTAINER, "containerd://job", "k/job", "job", qos="BE")
POD = Subject(SubjectKind.POD, "pod", "k", "pod")
OWNERS = {
    10: owner_of(WEB),
    11: owner_of(WEB),
    20: owner_of(JOB),
    30: owner_of(POD),
    40: Owner("system", "ssh.service"),
}
KEYS = np.array(list(OWNERS))


def page(wakeup: list[int], preempted: list[int]) -> Registries:
    """Of this many waits of each kind by key, all in bucket 8 (131 to 262 us) and 2 s long."""
    waited: dict[str, Any] = {}
    for name, counts in (("wakeup", wakeup), ("preempt", preempted)):
        hist = np.zeros((len(KEYS), BUCKETS), dtype=np.int64)
        hist[:, 8] = counts
        waited |= {f"{name}_hist": hist, f"{name}_sum_ns": np.array(counts) * 2_000_000_000}
    sched_latency = SimpleNamespace(
        latest=SimpleNamespace(keys=KEYS, **waited),
        subjects_of=lambda keys: group(keys, OWNERS.__getitem__),
        matrix_by_subject=lambda naming: None,
    )
    index = SimpleNamespace(owner=OWNERS.__getitem__)
    advisor = SimpleNamespace(
        sched_latency=sched_latency,
        index=index,
        pressure=None,
        use=SimpleNamespace(snapshot=None),
        workloads=SimpleNamespace(subjects=(), pods={}),
    )
    registries = Registries()
    registries.node = "n"
    Views(
        advisor,  # type: ignore[arg-type]
        MetricCache(),
        registries,
        ProbeSet({}),
        SimpleNamespace(),  # type: ignore[arg-type]
        open_files=lambda: 0,
    )
    return registries


def test_a_containers_groups_are_one_histogram_and_without_waits_there_is_none() -> None:
    registries = page(wakeup=[1, 2, 5, 7, 9], preempted=[0, 0, 4, 1, 1])
    families = (metric for metric in registries.external.collect() if metric.name == "koordlet_sched_latency_seconds")
    samples = [sample for family in families for sample in family.samples]
    sums = {(s.labels["container_name"], s.labels["reason"]): s.value for s in samples if s.name.endswith("_sum")}
    assert sums == {("web", "wakeup"): 6.0, ("job", "wakeup"): 10.0, ("job", "preempted"): 8.0}
    assert sum(s.name.endswith("_bucket") for s in samples) == 3 * len(BUCKET_BOUNDS), "a histogram is whole"
    whole = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket") and s.labels["qos"] == "LS"}
    assert [whole[bound] for bound in BUCKET_BOUNDS] == [0, 0, 0] + [3] * (len(BUCKET_BOUNDS) - 3)
    assert BUCKET_BOUNDS[2:4] == ("0.000131072", "0.000524288")
