"""Profiles on pods that exist already: whom, what, how often (spec 04 §8)."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.colocationprofile.controller import AppliedProfiles
from control.manager.colocationprofile.decide import managed, profile_patch, selects
from control.standalone.patch import merge_patch
from koordlet.api.core import Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.encoding.wire import convert
from tests.control.manager.conftest import WebhookCluster
from tests.fakeclock import FakeClock

PODS = "/api/v1/namespaces/default/pods"
PROFILES = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles"
QOS = "koordinator.sh/qosClass"
MANAGED = {"config.koordinator.sh/controller-managed": "true"}


def profile(own_labels: dict[str, str] | None = None, **spec: Any) -> ClusterColocationProfile:
    return convert({"metadata": {"name": "p", "labels": own_labels or {}}, "spec": spec}, ClusterColocationProfile)


def pod(labels: dict[str, str] | None = None, phase: str = "Pending", node: str = "", **meta: Any) -> Pod:
    return convert(
        {
            "metadata": {"name": "x", "labels": labels or {}, **meta},
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        },
        Pod,
    )


def label(**labels: Any) -> dict[str, dict[str, str]]:
    return {"matchLabels": labels}


@pytest.mark.parametrize(
    ("labels", "by_default", "expected"),
    [({}, False, False), ({}, True, True), (MANAGED, False, True), (dict.fromkeys(MANAGED, "false"), False, False)],
)
def test_managed_profiles(labels: dict[str, str], by_default: bool, expected: bool) -> None:
    assert managed(profile(labels), by_default=by_default) is expected


MINE = pod({"a": "1"})
WANTED = {
    "selected": (profile(selector=label(a="1")), MINE, {}, True),
    "empty selector": (profile(selector={}), MINE, {}, True),
    "no selector is for no pod": (profile(), MINE, {}, False),
    "other labels": (profile(selector=label(a="2")), MINE, {}, False),
    "namespace": (profile(selector={}, namespaceSelector=label(n="1")), MINE, {"n": "1"}, True),
    "other namespace": (profile(selector={}, namespaceSelector=label(n="1")), MINE, {"n": "2"}, False),
    "missing namespace": (profile(selector={}, namespaceSelector=label(n="1")), MINE, None, False),
    "empty namespace selector": (profile(selector={}, namespaceSelector={}), MINE, None, True),
    "has a node": (profile(selector={}), pod(node="n"), {}, False),
    "runs": (profile(selector={}), pod(phase="Running"), {}, False),
    "ends": (profile(selector={}), pod(deletionTimestamp="2026-01-01T00:00:00Z"), {}, False),
}


@pytest.mark.parametrize(("subject", "candidate", "namespace", "expected"), WANTED.values(), ids=WANTED)
def test_selected_pods(
    subject: ClusterColocationProfile, candidate: Pod, namespace: dict[str, str] | None, expected: bool
) -> None:
    assert selects(subject, candidate, namespace) is expected


RAW = {
    "metadata": {"name": "x", "labels": {"a": "1"}, "x-unknown": {"k": 1}},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], "schedulerName": "default"},
}
CHANGES = {
    "labels and class": (
        {"labels": {"b": "2"}, "qosClass": "LS", "koordinatorPriority": 7, "labelSuffixes": {"a": "-s"}},
        {"metadata": {"labels": {"b": "2", "a": "1-s", QOS: "LS", "koordinator.sh/priority": "7"}}},
    ),
    "scheduler, priority class and resources stay": (
        {"qosClass": "BE", "priorityClassName": "koord-batch", "schedulerName": "koord-scheduler"},
        {"metadata": {"labels": {QOS: "BE"}}},
    ),
    "patch": (
        {"patch": {"spec": {"tolerations": [{"key": "k"}], "schedulerName": None}}},
        {"spec": {"tolerations": [{"key": "k"}], "schedulerName": None}},
    ),
    "nothing": ({"labels": {"a": "1"}}, {}),
}


@pytest.mark.parametrize(("spec", "expected"), CHANGES.values(), ids=CHANGES)
def test_profile_patch(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(RAW)
    assert profile_patch(profile(**spec), RAW) == expected
    assert before == RAW


@given(st.lists(st.sampled_from(["-s", "-t", ""]), max_size=3))
def test_suffixes_are_added_once_however_often_a_profile_is_applied(suffixes: list[str]) -> None:
    current = copy.deepcopy(RAW)
    for suffix in suffixes:
        mine = profile(labelSuffixes={"a": suffix})
        current = merge_patch.apply(current, profile_patch(mine, current))
        assert profile_patch(mine, current) == {}
        assert current["metadata"]["labels"]["a"].endswith(suffix)


async def test_applied_profiles_are_cached_for_a_limited_time() -> None:
    clock = FakeClock()
    applied = AppliedProfiles(clock, keep_s=300, purge_every_s=600)
    applied.add(("p/1", "uid"))
    assert ("p/1", "uid") in applied
    assert ("p/2", "uid") not in applied
    await clock.advance(301)
    assert ("p/1", "uid") not in applied
    assert len(applied) == 1, "purged later"


async def test_pending_pods_are_changed_and_others_are_not(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]],
) -> None:
    cluster = await webhook_cluster(
        {"ColocationProfileController": True}, "--colocation-profile-reconcile-interval=200ms"
    )
    await cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    for name, labels, node in (("waits", {"a": "1"}, ""), ("bound", {"a": "1"}, "n"), ("other", {"a": "2"}, "")):
        spec = {"containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "1"}]}]}
        await cluster.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {**spec, **({"nodeName": node} if node else {})},
            },
        )
    await cluster.create(
        PROFILES,
        {
            "apiVersion": "config.koordinator.sh/v1alpha1",
            "kind": "ClusterColocationProfile",
            "metadata": {"name": "p", "labels": MANAGED},
            "spec": {"selector": label(a="1"), "labels": {"seen": "1"}, "labelSuffixes": {"a": "-s"}},
        },
    )

    async def changed() -> str | None:
        result: str | None = (await cluster.get(f"{PODS}/waits"))["metadata"]["labels"].get("seen")
        return result

    await cluster.until(changed)
    waits = await cluster.get(f"{PODS}/waits")
    assert waits["metadata"]["labels"] == {"a": "1-s", "seen": "1"}
    assert waits["spec"]["containers"][0]["env"] == [{"name": "E", "value": "1"}], "what caches trim is still there"

    # The suffixed label no longer matches; the next round of the profile processes a second pod.
    late = {"name": "late", "labels": {"a": "1"}}
    await cluster.create(
        PODS,
        {"apiVersion": "v1", "kind": "Pod", "metadata": late, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    )

    async def late_too() -> str:
        result: str = (await cluster.get(f"{PODS}/late"))["metadata"]["labels"].get("seen")
        return result

    await cluster.until(late_too)
    for name in ("bound", "other"):
        assert "seen" not in (await cluster.get(f"{PODS}/{name}"))["metadata"]["labels"]
    assert (await cluster.get(f"{PODS}/waits"))["metadata"]["labels"]["a"] == "1-s"
