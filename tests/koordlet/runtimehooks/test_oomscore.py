"""OOM scores by annotation (spec 03 §4.14)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.resourceexecutor import Setting
from koordlet.runtimehooks.hooks.oomscore import FAMILY, OOMScoreAdj
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

BY_CONTAINER, FOR_ALL = "koordinator.sh/oom-score-adj-spec", "koordinator.sh/oom-score-adj"


def decided(annotations: dict[str, str], **fields: Any) -> dict[str, int | str]:
    pod = make_pod("p", kube="Burstable", containers=2, annotations=annotations, **fields)
    updates = present(OOMScoreAdj().decide(make_view(pods=(pod,)))).updates
    return {present(update.setting.cgroup_dir).rpartition("/")[2]: update.value for update in updates}


CASES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "nothing asked": ({}, {}),
    "for all": ({FOR_ALL: "50"}, {"p-c0": 50, "p-c1": 50}),
    "a tenant's score is not negative": ({FOR_ALL: "-1"}, {}),
    "nor that of one container": ({BY_CONTAINER: '{"c0": -1000, "c1": 0}'}, {"p-c1": 0}),
    "by container": ({BY_CONTAINER: '{"c1": 7}'}, {"p-c1": 7}),
    "both": ({BY_CONTAINER: '{"c1": 7}', FOR_ALL: "9"}, {"p-c0": 9, "p-c1": 7}),
    "out of range is left out": ({BY_CONTAINER: '{"c0": 1001, "c1": 1000}', FOR_ALL: "9"}, {"p-c1": 1000}),
    "malformed, whatever the other says": ({BY_CONTAINER: "{", FOR_ALL: "9"}, {}),
    "no number": ({FOR_ALL: "low"}, {}),
}


@pytest.mark.parametrize(("annotations", "expected"), CASES.values(), ids=CASES)
def test_scores(annotations: dict[str, str], expected: dict[str, int]) -> None:
    assert decided(annotations) == expected


def test_which_pods_are_not_changed() -> None:
    assert decided({FOR_ALL: "9"}, phase="Failed") == {}
    assert decided({FOR_ALL: "9"}, spec={"runtimeClassName": "kata"}) == {}


def test_init_containers_are_set_while_they_run() -> None:
    by_container = json.dumps({"prepare": 3})
    assert decided({FOR_ALL: "9", BY_CONTAINER: by_container}, init="prepare") == {"p-c0": 9, "p-c1": 9, "p-prepare": 3}


def test_the_metric_has_the_scores_that_are_held() -> None:
    pod = make_pod("p", containers=2, annotations={FOR_ALL: "9"})
    container = pod.meta.containers[0]
    held = {Setting("oom_score_adj", container.cgroup_dir): 9}
    decision = OOMScoreAdj().decide(make_view(pods=(pod,), held=held))
    assert decision is not None
    assert decision.figures == {FAMILY: {("p", "default", "uid-p", "c0"): 9}}


@pytest.mark.parametrize(("priority", "expected"), [(2_000_000_000, {"p-c0": -997, "p-c1": -997}), (1_999_999_999, {})])
def test_negative_scores_need_a_system_priority(priority: int, expected: dict[str, int]) -> None:
    spec = {"containers": [{"name": "c0"}, {"name": "c1"}], "priority": priority}
    assert decided({FOR_ALL: "-997"}, spec=spec) == expected
