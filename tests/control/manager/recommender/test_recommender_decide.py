"""Targets, amounts and evictions: tables for the pure parts of spec 04 §9.3."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.recommender.estimate import Bounds, Estimate
from control.manager.recommender.eviction import choose, distance
from control.manager.recommender.requests import ContainerAmounts, memory_limit, requested, set_requests
from control.manager.recommender.settings import (
    ANNOTATION_APPLIED,
    ANNOTATION_MODE,
    MIB,
    Mode,
    RecommenderSettings,
    mode_of,
)
from control.manager.recommender.targets import (
    PodIndex,
    UnsupportedTarget,
    WorkloadOwner,
    measured_container,
    owners,
    target_of,
)
from koordlet.api.core import Container, Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.encoding.wire import Time, convert
from koordlet.api.meta import ObjectMeta

NOW = 1_782_864_000.0
HOUR = 3600.0
DEFAULTS = RecommenderSettings()


def stamp(at: float) -> str:
    return Time.from_unix(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def recommendation(target: dict[str, Any], **annotations: str) -> Recommendation:
    return convert({"metadata": {"annotations": annotations}, "spec": {"target": target}}, Recommendation)


def owner(kind: str, name: str, version: str, uid: str = "u", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "apiVersion": version, "uid": uid, "controller": True, **more}


def pod(name: str = "p", *references: dict[str, Any], requests: dict[str, str] | None = None, **more: Any) -> Pod:
    """A pod of one container that runs, serves and is a day old."""
    status = {
        "phase": "Running",
        "startTime": stamp(NOW - 24 * HOUR),
        "conditions": [{"type": "Ready", "status": "True"}],
        **more.pop("status", {}),
    }
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": stamp(NOW - 24 * HOUR)}
    meta |= {"ownerReferences": list(references), **more.pop("meta", {})}
    containers = more.pop("containers", [{"name": "c", "image": "i", "resources": {"requests": requests or {}}}])
    spec = {"nodeName": "n", "containers": containers, **more}
    return convert({"metadata": meta, "spec": spec, "status": status}, Pod)


# --- whose pods ---------------------------------------------------------------------------------------


def workload(kind: str, name: str = "w", version: str = "apps/v1") -> dict[str, Any]:
    return {"type": "workload", "workload": {"kind": kind, "name": name, "apiVersion": version}}


RS, JOB = owner("ReplicaSet", "w-1", "apps/v1"), owner("Job", "w-1", "batch/v1")
ABOVE = {
    ("ReplicaSet", "w-1"): ObjectMeta(name="w-1", uid="u", owner_references=convert(
        {"ownerReferences": [owner("Deployment", "w", "apps/v1")]}, ObjectMeta).owner_references),
    ("Job", "w-1"): ObjectMeta(name="w-1", uid="u", owner_references=convert(
        {"ownerReferences": [owner("CronJob", "w", "batch/v1")]}, ObjectMeta).owner_references),
}  # fmt: skip
TARGETS = {
    "deployment": (workload("Deployment"), pod("p", RS), True),
    "its replica set": (workload("ReplicaSet", "w-1"), pod("p", RS), True),
    "cron job": (workload("CronJob", version="batch/v1"), pod("p", JOB), True),
    "stateful set": (workload("StatefulSet"), pod("p", owner("StatefulSet", "w", "apps/v1")), True),
    "an older version": (workload("StatefulSet", version="apps/v1beta1"), pod("p", owner("StatefulSet", "w", "apps/v1")), True),  # noqa: E501
    "no version": (workload("StatefulSet", version=""), pod("p", owner("StatefulSet", "w", "apps/v1")), True),
    "another name": (workload("Deployment", "v"), pod("p", RS), False),
    "another kind of the name": (workload("StatefulSet"), pod("p", RS), False),
    "another group": (workload("StatefulSet"), pod("p", owner("StatefulSet", "w", "other/v1")), False),
    "an owner that does not control": (workload("StatefulSet"), pod("p", owner("StatefulSet", "w", "apps/v1", controller=False)), False),  # noqa: E501
    "recreated": (workload("Deployment"), pod("p", owner("ReplicaSet", "w-1", "apps/v1", uid="old")), False),
    "not known yet": (workload("Deployment"), pod("p", owner("ReplicaSet", "w-2", "apps/v1")), False),
    "bare": (workload("Deployment"), pod("p"), False),
    "labels": ({"type": "podSelector", "podSelector": {"matchLabels": {"a": "1"}}}, pod(meta={"labels": {"a": "1"}}), True),  # noqa: E501
    "other labels": ({"type": "podSelector", "podSelector": {"matchLabels": {"a": "1"}}}, pod("p", RS), False),
    "all labels": ({"type": "podSelector", "podSelector": {}}, pod(), True),
}  # fmt: skip


@pytest.mark.parametrize(("target", "candidate", "selected"), TARGETS.values(), ids=TARGETS)
def test_targeted_pods(target: dict[str, Any], candidate: Pod, selected: bool) -> None:
    above = owners("ns", candidate.metadata, lambda _, reference: ABOVE.get((reference.kind, reference.name)))
    chosen, members = target_of(recommendation(target)), PodIndex()
    members.add(candidate, above)
    assert chosen.selects(candidate, above) is selected
    assert list(members.of("ns", chosen)) == ([candidate] if selected else [])
    assert not members.of("elsewhere", chosen)


def test_cyclic_owner_references_terminate() -> None:
    loop: ObjectMeta = convert({"name": "w-1", "uid": "u", "ownerReferences": [RS]}, ObjectMeta)
    assert set(owners("ns", loop, lambda *_: loop)) == {WorkloadOwner("apps", "ReplicaSet", "w-1")}


UNSUPPORTED = {
    "kind": (workload("Node"), "spec.target.workload.kind: 'Node' is not one of"),
    "group": (workload("Deployment", version="v1"), "spec.target.workload.apiVersion: Deployment is in API group apps"),
    "no workload": ({"type": "workload"}, "spec.target.workload: is missing"),
    "no name": (workload("Deployment", ""), "spec.target.workload: is missing or has no name"),
    "no selector": ({"type": "podSelector"}, "spec.target.podSelector: is missing"),
    "bad selector": (
        {"type": "podSelector", "podSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
        "spec.target.podSelector: ",
    ),
    "type": ({"type": "node"}, "spec.target.type: 'node' is neither"),
}


@pytest.mark.parametrize(("target", "problem"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_targets(target: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedTarget) as caught:
        target_of(recommendation(target))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mode"),
    [(None, Mode.OFF), ("Off", Mode.OFF), ("Initial", Mode.INITIAL), ("Auto", Mode.AUTO), ("auto", None)],
)
def test_modes(text: str | None, mode: Mode | None) -> None:
    annotations = {} if text is None else {ANNOTATION_MODE: text}
    assert mode_of(recommendation({"type": "workload"}, **annotations)) is mode


TWO = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
SIDECAR = [{"name": "s", "image": "i", "restartPolicy": "Always"}]


@pytest.mark.parametrize(
    ("candidate", "name"),
    [(pod(), "c"), (pod(initContainers=[{"name": "i", "image": "i"}]), "c"), (pod(containers=TWO), None),
     (pod(initContainers=SIDECAR), None)],
    ids=["one", "init container", "two", "sidecar"],
)  # fmt: skip
def test_measured_container(candidate: Pod, name: str | None) -> None:
    measured = measured_container(candidate)
    assert (measured and measured.name) == name


# --- requests -----------------------------------------------------------------------------------------

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GIVEN = ContainerAmounts(1500, 512 * MIB)
GIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"requests": {"cpu": "1500m", "memory": "512Mi"}}),
    "requests": ({"requests": {"cpu": "3", "memory": "1Gi", "gpu": "1"}},
                 {"requests": {"cpu": "1500m", "memory": "512Mi", "gpu": "1"}}),
    "guaranteed stays": ({"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "1Gi"}},
                         {"requests": {"cpu": "1500m", "memory": "512Mi"},
                          "limits": {"cpu": "1500m", "memory": "512Mi"}}),
    "ratio": ({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
              {"requests": {"cpu": "1500m", "memory": "512Mi"}, "limits": {"cpu": "3"}}),
    "limit alone counts as the request": ({"limits": {"cpu": "4", "memory": "1Gi"}},
                                          {"requests": {"cpu": "1500m", "memory": "512Mi"},
                                           "limits": {"cpu": "1500m", "memory": "512Mi"}}),
    "limit never below": ({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}},
                          {"requests": {"cpu": "1500m", "memory": "512Mi"}, "limits": {"cpu": "1500m"}}),
    "limit up to a milli": ({"requests": {"cpu": "7"}, "limits": {"cpu": "10"}},
                            {"requests": {"cpu": "1500m", "memory": "512Mi"}, "limits": {"cpu": "2143m"}}),
    "batch": ({"requests": {BATCH_CPU: "3k", BATCH_MEMORY: "1Gi"}, "limits": {BATCH_CPU: "6k", BATCH_MEMORY: "1Gi"}},
              {"requests": {BATCH_CPU: "1500", BATCH_MEMORY: "512Mi"},
               "limits": {BATCH_CPU: "3k", BATCH_MEMORY: "512Mi"}}),
    "numbers": ({"requests": {"cpu": 3, "memory": 1024}},
                {"requests": {"cpu": "1500m", "memory": "512Mi"}}),
    "equal stays as it was written": ({"requests": {"cpu": "1.5", "memory": "0.5Gi"}, "limits": {"cpu": "2"}},
                                      {"requests": {"cpu": "1.5", "memory": "0.5Gi"}, "limits": {"cpu": "2"}}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), GIVES.values(), ids=GIVES)
def test_recommended_requests_are_set(before: dict[str, Any], after: dict[str, Any]) -> None:
    raw = {"spec": {"containers": [{"name": "c", "resources": copy.deepcopy(before)}, {"name": "other"}]}}
    changed = set_requests(raw, {"c": GIVEN})
    assert raw["spec"]["containers"] == [{"name": "c", "resources": after}, {"name": "other"}]
    assert changed == ([] if before == after else ["c"])
    again = copy.deepcopy(raw)
    assert set_requests(again, {"c": GIVEN}) == [] and again == raw, "once is enough"


amounts = st.integers(1, 2**40)


@given(st.fixed_dictionaries({}, optional={"cpu": amounts, "memory": amounts}),
       st.fixed_dictionaries({}, optional={"cpu": amounts, "memory": amounts}), amounts, amounts)  # fmt: skip
def test_law_requests_equal_the_recommendation_and_limits_are_not_below(
    requests: dict[str, int], limits: dict[str, int], cpu: int, memory: int
) -> None:
    resources = {"requests": {k: str(v) for k, v in requests.items()}, "limits": {k: str(v) for k, v in limits.items()}}
    raw = {"spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}
    set_requests(raw, {"c": ContainerAmounts(cpu, memory)})
    after: Container = convert(raw["spec"]["containers"][0], Container)
    assert requested(after) == ContainerAmounts(cpu, memory)
    assert set(after.resources.limits) == set(limits), "no limit is made up"
    for name, limit in after.resources.limits.items():
        assert limit >= after.resources.requests[name]
        if limits[name] == requests.get(name, limits[name]):
            assert limit == after.resources.requests[name], "equal ones stay equal"


READ = {
    "plain": ({"requests": {"cpu": "1500m", "memory": "1Gi"}}, ContainerAmounts(1500, 1 << 30), 0),
    "limits": ({"limits": {"cpu": "2", "memory": "1Gi"}}, ContainerAmounts(2000, 1 << 30), 1 << 30),
    "batch": (
        {"requests": {BATCH_CPU: "1500"}, "limits": {BATCH_MEMORY: "1Gi"}},
        ContainerAmounts(1500, 1 << 30),
        1 << 30,
    ),
    "nothing": ({}, ContainerAmounts(0, 0), 0),
}


@pytest.mark.parametrize(("resources", "expected", "limit"), READ.values(), ids=READ)
def test_requested_amounts(resources: dict[str, Any], expected: ContainerAmounts, limit: int) -> None:
    container: Container = convert({"name": "c", "image": "i", "resources": resources}, Container)
    assert (requested(container), memory_limit(container)) == (expected, limit)


# --- evictions ----------------------------------------------------------------------------------------

FINE = Estimate("c", Bounds(500, 1000, 2000), Bounds(MIB, 2 * MIB, 4 * MIB), 1.0, 1, "")
KNOWN = {"c": FINE}
SET = owner("StatefulSet", "w", "apps/v1")
FIT, FAR = {"cpu": "1", "memory": "2Mi"}, {"cpu": "8", "memory": "2Mi"}
UNREADY = {"conditions": [{"type": "Ready", "status": "False"}]}


def far(name: str, **more: Any) -> Pod:
    return pod(name, SET, requests=FAR, **more)


def fits(name: str, **more: Any) -> Pod:
    return pod(name, SET, requests=FIT, **more)


def leaving(name: str) -> Pod:
    return fits(name, meta={"deletionTimestamp": stamp(NOW)})


CHOICES: dict[str, tuple[list[Pod], dict[str, Any], list[str]]] = {
    "half of four": ([far("a"), far("b"), far("c"), far("d")], {}, ["a", "b"]),
    "those that fit stay": ([far("a"), fits("b"), fits("c"), fits("d")], {}, ["a"]),
    "one of three": ([far("a"), far("b"), far("c")], {}, ["a"]),
    "one of two": ([far("a"), far("b")], {}, ["a"]),
    "never a lone one": ([far("a")], {}, []),
    "a single one if configured": ([far("a")], {"eviction_minimum_replicas": 1}, ["a"]),
    "a missing one counts": ([far("a"), far("b"), far("c"), fits("d", status=UNREADY)], {}, ["a"]),
    "one that leaves counts": ([far("a"), far("b"), far("c"), leaving("d")], {}, ["a"]),
    "as many missing as may be": ([far("a"), far("b"), fits("c", status=UNREADY), leaving("d")], {}, []),
    "broken ones cost nothing": ([far("a"), fits("b"), far("c", status=UNREADY)], {}, ["c"]),
    "all broken": ([far("a", status=UNREADY), far("b", status=UNREADY)], {}, ["a"]),
    "one at least": ([far("a"), far("b"), far("c")], {"eviction_share": 0.1}, ["a"]),
    "none": ([far("a"), far("b")], {"eviction_share": 0.0}, []),
    "never all": ([far("a"), far("b"), far("c")], {"eviction_share": 1.0}, ["a", "b"]),
    "young ones stay": ([far("a", meta={"creationTimestamp": stamp(NOW - 60)}), fits("b")], {}, []),
    "ended ones do not count": ([far("a"), fits("b", status={"phase": "Succeeded"})], {}, []),
    "jobs are left to their work": ([pod("a", JOB, requests=FAR), pod("b", JOB, requests=FAR)], {}, []),
    "no controller would recreate it": ([pod("a", requests=FAR), pod("b", requests=FAR)], {}, []),
    "exclusive CPUs": ([far("a", meta={"labels": {"koordinator.sh/qosClass": "LSR"}}), fits("b")], {}, []),
    "the worst first": ([far("a"), pod("b", SET, requests={"cpu": "80", "memory": "2Mi"})], {}, ["b"]),
    "too little": ([pod("a", SET, requests={"cpu": "1", "memory": "1"}), fits("b")], {}, ["a"]),
    "no requests at all": ([pod("a", SET), fits("b")], {}, ["a"]),
}


@pytest.mark.parametrize(("pods", "settings", "names"), CHOICES.values(), ids=CHOICES)
def test_selected_pods(pods: list[Pod], settings: dict[str, Any], names: list[str]) -> None:
    chosen = choose(pods, KNOWN, RecommenderSettings(**settings), NOW, evicted_at=float("inf"))
    assert ([each.metadata.name for each in chosen.pods], chosen.blocked) == (names, "")


def test_unmutated_replacement_pods_stop_evictions() -> None:
    """Admission does not reach them; what was given something, and is far off now, is no such pod."""
    new = {"creationTimestamp": stamp(NOW - HOUR)}
    pods = [far("a"), far("b", meta=new)]
    chosen = choose(pods, KNOWN, DEFAULTS, NOW, evicted_at=NOW - 2 * HOUR)
    assert not chosen.pods and "pod b was created after an eviction" in chosen.blocked
    assert choose(pods, KNOWN, DEFAULTS, NOW + 23 * HOUR, evicted_at=NOW - 2 * HOUR).pods, "tried again a day later"
    new_pod = far("b", meta={**new, "annotations": {ANNOTATION_APPLIED: "w"}})
    assert choose([far("a"), new_pod], KNOWN, DEFAULTS, NOW, evicted_at=NOW - 2 * HOUR).pods


@given(st.lists(st.sampled_from(["far", "fits", "unready", "leaving"]), max_size=12), st.floats(0, 1))
def test_law_unavailable_pods_never_exceed_the_share(kinds: list[str], share: float) -> None:
    builders: dict[str, Callable[[str], Pod]] = {
        "far": far,
        "fits": fits,
        "leaving": leaving,
        "unready": lambda name: far(name, status=UNREADY),
    }
    pods = [builders[kind](f"p{number}") for number, kind in enumerate(kinds)]
    chosen = choose(pods, KNOWN, RecommenderSettings(eviction_share=share), NOW, evicted_at=float("inf")).pods
    assert all(distance(each, KNOWN) > 0 for each in chosen)
    serving = [each for each in chosen if each.status.conditions[0].status == "True"]
    if serving:
        missing = sum(kind in ("unready", "leaving") for kind in kinds) + len(serving)
        assert missing <= max(int(len(pods) * share), 1)
        assert missing < len(pods)
