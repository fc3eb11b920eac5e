"""No pod, and no other object of a tenant, keeps more than a bounded part of a component's memory; what a pod holds is
still counted."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Hashable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.boundedpods import MAX_ANNOTATION_BYTES, MAX_BYTES, ORDINARY_BYTES, TOO_LONG, bounded, kept_bytes
from control.descheduler.state.objects import trim_pod as trimmed_by_descheduler
from control.manager.caches import KINDS, Caches
from control.manager.queueing.jobs import desired_spec, queue_of
from control.scheduler.state.objects import ClusterObjects, kept_kinds
from koordlet.api import names
from koordlet.api.core import Job, Pod, ReplicaSet, Service, StatefulSet
from koordlet.api.core.podresources import pod_limits, pod_requests
from koordlet.api.crs.queueing import QueueUnit
from koordlet.api.encoding import wire
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, ClientConfig, Informer

TRIMS: dict[str, Callable[[Pod], Pod]] = {
    "manager": KINDS[Pod].trim,
    "descheduler": trimmed_by_descheduler,
    "scheduler": kept_kinds(FeatureGates(SCHEDULER))[Pod].trim,
}
STUFFING: dict[str, Callable[[int], Any]] = {
    "metadata.labels": lambda size: {f"l{i}": "" for i in range(size // 12)},
    "metadata.annotations": lambda size: {f"a{i}": "\U0001f600" + "x" * 1000 for i in range(size // 1020)},
    "metadata.ownerReferences": lambda size: [
        {"apiVersion": "v1", "kind": "A", "name": f"n{i}", "uid": f"u{i}"} for i in range(size // 60)
    ],
    "metadata.finalizers": lambda size: [f"a/{i}" for i in range(size // 10)],
    "spec.containers": lambda size: [
        {"name": f"c{i}", "resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "2m"}}} for i in range(size // 75)
    ],
    "spec.initContainers": lambda size: [
        {"name": f"i{i}", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Ki"}}}
        for i in range(size // 80)
    ],
    "spec.tolerations": lambda size: [{"key": f"k{i}"} for i in range(size // 16)],
    "spec.nodeSelector": lambda size: {f"n{i}": "" for i in range(size // 12)},
    "spec.affinity": lambda size: {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "k", "operator": "In", "values": [f"v{i}" for i in range(size // 9)]}
                        ]
                    }
                ]
            }
        }
    },
    "spec.volumes": lambda size: [{"name": f"v{i}", "emptyDir": {}} for i in range(size // 32)],
    "status.conditions": lambda size: [{"type": f"t{i}", "status": "True"} for i in range(size // 35)],
}
"""Path -> a value of about that many bytes of JSON."""


def stuffed(sizes: dict[str, int]) -> Pod:
    document: dict[str, dict[str, Any]] = {
        "metadata": {"name": "p", "namespace": "tenant", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "nodeName": "n",
            "priority": 5,
        },
        "status": {"phase": "Running"},
    }
    for path, size in sizes.items():
        part, _, field = path.partition(".")
        value = STUFFING[path](size)
        document[part][field] = document[part].get(field, []) + value if isinstance(value, list) else value
    decoded: Pod = wire.json_decoder(Pod).decode(json.dumps(document).encode())
    return decoded


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(sorted(STUFFING)), st.sampled_from((100, 40_000, 200_000)), max_size=4))
def test_memory_is_bounded_and_amounts_stay(sizes: dict[str, int]) -> None:
    before = stuffed(sizes)
    after = bounded(stuffed(sizes))
    assert kept_bytes(after) <= MAX_BYTES or len(wire.encode(after)) <= ORDINARY_BYTES
    assert pod_requests(after) == pod_requests(before)
    assert pod_limits(after) == pod_limits(before)
    assert (after.metadata.key, after.metadata.uid, after.spec.node_name, after.spec.priority) == (
        "tenant/p", "u", "n", 5,
    )  # fmt: skip
    cut = after.spec.tolerations != before.spec.tolerations or after.spec.affinity != before.spec.affinity
    assert not cut or [gate.name for gate in after.spec.scheduling_gates] == [TOO_LONG]


@pytest.mark.parametrize("component", TRIMS)
@pytest.mark.parametrize(
    "paths", (("metadata.labels", "spec.tolerations"), ("metadata.annotations", "spec.containers"), ("spec.affinity",))
)
def test_what_a_component_keeps_is_bounded(component: str, paths: tuple[str, ...]) -> None:
    sizes = dict.fromkeys(paths, 250_000)
    TRIMS[component](stuffed({}))
    tracemalloc.start()
    try:
        kept = TRIMS[component](stuffed(sizes))
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.metadata.name == "p"
    assert current <= 3 * MAX_BYTES / 2, "with caches of texts"


def test_an_ordinary_pod_is_kept_as_it_is() -> None:
    sizes = dict.fromkeys(STUFFING, 2000)
    pod = stuffed(sizes)
    assert bounded(pod) is pod
    assert pod == stuffed(sizes)


def test_only_long_annotations_are_left_out() -> None:
    """A manifest of 200 KiB in an annotation hides neither what a component wrote nor the constraints."""
    pod = stuffed({"spec.affinity": 30_000, "metadata.labels": 3000})
    written = {f"written-{number}": "x" * 1000 for number in range(40)}
    pod.metadata.annotations = {"a-manifest": "x" * 200_000, **written}
    before = stuffed({"spec.affinity": 30_000, "metadata.labels": 3000})
    after = bounded(pod)
    assert after.metadata.annotations == written
    assert kept_bytes(after.metadata.annotations) <= 2 * MAX_ANNOTATION_BYTES
    assert (after.spec, after.metadata.labels) == (before.spec, before.metadata.labels)


def test_many_short_annotations_hide_no_allocation() -> None:
    """Without its allocation, the devices of a bound pod would be given to another one."""
    pod = stuffed({})
    allocation = {names.ANNOTATION_DEVICE_ALLOCATED: "x" * 4000, names.ANNOTATION_RESOURCE_STATUS: "x" * 4000}
    known = {names.ANNOTATION_GANG_GROUPS: "x" * 200}
    pod.metadata.annotations = {f"a{number}": "" for number in range(20_000)} | known | allocation
    after = bounded(pod).metadata.annotations
    assert allocation.items() <= after.items()
    assert known.items() <= after.items()
    assert kept_bytes(after) <= 2 * MAX_ANNOTATION_BYTES


def test_known_keys_of_a_cut_pod_stay() -> None:
    pod = stuffed({"metadata.labels": 600_000})
    pod.metadata.labels[names.LABEL_QUOTA_NAME] = "q"
    after = bounded(pod)
    assert after.metadata.labels[names.LABEL_QUOTA_NAME] == "q"
    assert len(after.metadata.labels) < 200


def test_a_deep_pod_is_bounded() -> None:
    volume = b'{"name":"v","projected":' + b'{"a":' * 990 + b"1" + b"}" * 990 + b"}"
    pod: Pod = wire.json_decoder(Pod).decode(b'{"metadata":{"name":"p"},"spec":{"volumes":[' + volume + b"]}}")
    assert bounded(pod).metadata.name == "p"


CONTAINERS = [{"name": f"c{i}", "image": "a"} for i in range(10_000)]
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}
LABELS = {"labels": {f"l{i}": "" for i in range(60_000)}, "annotations": {"a": "x" * 200_000}}
QUEUED = {"annotations": {names.ANNOTATION_QUEUE_NAME: "q"}}
SELECTOR = {"matchLabels": {"a": "b"}}
OBJECTS: dict[str, tuple[str, type[Any], dict[str, Any], dict[str, Any]]] = {
    "templates of workloads without pods": (
        "scheduler", ReplicaSet, {}, {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE},
    ),
    "labels of a workload": ("scheduler", StatefulSet, LABELS, {"selector": SELECTOR}),
    "labels of a service": ("scheduler", Service, LABELS, {"selector": {"a": "b"}}),
    "template of a queued job": ("manager", Job, QUEUED, {"parallelism": 2, "template": TEMPLATE}),
    "labels of a queued unit": ("manager", QueueUnit, LABELS, {"queue": "q"}),
    "labels of a ReplicaSet": ("manager", ReplicaSet, LABELS, {}),
}  # fmt: skip
REFUSED: dict[str, tuple[str, type[Any], dict[str, Any], dict[str, Any]]] = {
    "selector": ("scheduler", Service, {}, {"selector": {f"l{i}": "" for i in range(60_000)}}),
    "requests": ("manager", QueueUnit, {}, {"request": {f"r{i}": "1" for i in range(60_000)}}),
}


def informer_of(component: str, kind: type[Any]) -> Informer[Any]:
    client = Client(ClientConfig(server="http://test"), registry=CollectorRegistry())
    if component == "manager":
        return Caches(client).informer(kind)
    return ClusterObjects(client, FeatureGates(SCHEDULER), "templates").informer(kind)


def stored(component: str, kind: type[Any], metadata: dict[str, Any], spec: dict[str, Any]) -> Informer[Any]:
    """An informer that was sent the object, and before it a short version of another one."""
    informer = informer_of(component, kind)
    document = {"metadata": {"name": "o", "namespace": "tenant", "uid": "u", **metadata}, "spec": spec}
    decoder: wire.FastDecoder[Any] = wire.json_decoder(cast(Hashable, kind))
    informer._take(decoder.decode(b'{"metadata":{"name":"p","namespace":"tenant"}}'))
    informer._take(decoder.decode(json.dumps(document).encode()))
    return informer


@pytest.mark.parametrize("case", OBJECTS.values(), ids=OBJECTS.keys())
def test_other_objects_of_tenants_are_bounded(case: tuple[str, type[Any], dict[str, Any], dict[str, Any]]) -> None:
    kept = stored(*case).get("tenant/o")
    assert kept is not None and kept_bytes(kept) <= MAX_BYTES
    _, kind, _, spec = case
    if "selector" in spec:
        assert wire.to_builtins(kept.spec.selector) == spec["selector"]
    if kind is Job:
        assert (queue_of(kept), desired_spec(kept).pod_sets[0].count) == ("q", 2)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_an_object_that_stays_too_long_is_refused(case: tuple[str, type[Any], dict[str, Any], dict[str, Any]]) -> None:
    informer = stored(*case)
    assert [each.metadata.name for each in informer.list()] == ["p"]
    assert "more than 512 KiB of memory" in informer.undecoded["tenant/o"]


def test_the_requests_of_a_queued_job_are_those_of_its_pods() -> None:
    containers = [{"name": f"c{i}", "resources": {"requests": {"cpu": "1", "example.com/gpu": "2"}}} for i in range(3)]
    spec = {"parallelism": 2, "template": {"spec": {"containers": containers, "overhead": {"memory": "1Gi"}}}}
    document = {"metadata": {"name": "o", "namespace": "tenant", **QUEUED}, "spec": spec}
    job: Job = wire.json_decoder(Job).decode(json.dumps(document).encode())
    expected = desired_spec(job)
    assert desired_spec(stored("manager", Job, QUEUED, spec).list()[-1]).request == expected.request
    assert wire.to_builtins(expected.request) == {"cpu": "6", "example.com/gpu": "12", "memory": "2Gi"}
