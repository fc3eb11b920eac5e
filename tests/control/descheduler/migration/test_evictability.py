"""Which pods may be evicted at all (spec 07 §4.1, §4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.migration.decide.args import MigrationControllerArgs, PriorityThreshold
from control.descheduler.migration.decide.evictability import Evictability, forced, never_evicted
from control.descheduler.state.pods import cost_of_eviction
from koordlet.api.meta import LabelSelector
from tests.control.descheduler.migration.build import pod

FORCE = "descheduler.alpha.kubernetes.io/evict"
COST = "scheduling.koordinator.sh/eviction-cost"
EMPTY_DIR = {"volumes": [{"name": "v", "emptyDir": {}}]}
HOST_PATH = {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}
CLAIM = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
CRITICAL = {"priority": 2_000_000_000}

BARE: dict[str, Any] = {"by": ""}
FAILED_BARE: dict[str, Any] = {"by": "", "phase": "Failed"}


@pytest.mark.parametrize(
    ("facts", "settings", "allowed"),
    [
        ({}, {}, True),
        ({"kind": "DaemonSet"}, {}, False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}, False),
        ({"annotations": {"kubernetes.io/config.source": "file"}}, {}, False),
        ({"annotations": {"kubernetes.io/config.source": "api"}}, {}, True),
        ({"terminating": True}, {}, False),
        (BARE, {}, False),
        (BARE, {"evict_all_bare_pods": True}, True),
        (BARE, {"evict_failed_bare_pods": True}, False),
        (FAILED_BARE, {"evict_failed_bare_pods": True}, True),
        (FAILED_BARE, {}, False),
        (BARE, {"skip_eviction_gates": ["BarePods"]}, True),
        ({"spec": CRITICAL}, {}, False),
        ({"spec": {"priority": 1_999_999_999}}, {}, True),
        ({"spec": CRITICAL}, {"evict_system_critical_pods": True}, True),
        ({"spec": CRITICAL}, {"skip_eviction_gates": ["SystemCritical"]}, True),
        ({"spec": {"priority": 100}}, {"priority_threshold": PriorityThreshold(value=100)}, False),
        ({"spec": {"priority": 99}}, {"priority_threshold": PriorityThreshold(value=100)}, True),
        ({}, {"priority_threshold": PriorityThreshold(value=100)}, True),
        (
            {"spec": {"priority": 100}},
            {"priority_threshold": PriorityThreshold(value=100), "evict_system_critical_pods": True},
            True,
        ),
        (
            {"spec": {"priority": 100}},
            {"priority_threshold": PriorityThreshold(value=100), "skip_eviction_gates": ["PriorityThreshold"]},
            True,
        ),
        ({"spec": EMPTY_DIR}, {}, False),
        ({"spec": HOST_PATH}, {}, False),
        ({"spec": EMPTY_DIR}, {"evict_local_storage_pods": True}, True),
        ({"spec": EMPTY_DIR}, {"skip_eviction_gates": ["LocalStorage"]}, True),
        ({"spec": CLAIM}, {}, True),
        ({"spec": CLAIM}, {"ignore_pvc_pods": True}, False),
        ({"spec": CLAIM}, {"ignore_pvc_pods": True, "skip_eviction_gates": ["PVC"]}, True),
        ({}, {"label_selector": LabelSelector(match_labels={"a": "b"})}, False),
        ({"labels": {"a": "b"}}, {"label_selector": LabelSelector(match_labels={"a": "b"})}, True),
        ({}, {"label_selector": LabelSelector()}, True),
        (
            {},
            {"label_selector": LabelSelector(match_labels={"a": "b"}), "skip_eviction_gates": ["LabelSelector"]},
            True,
        ),
        ({"kind": "DaemonSet", "annotations": {FORCE: ""}}, {}, True),
        ({"terminating": True, "annotations": {FORCE: "no"}}, {}, True),
    ],
)
def test_checks(facts: dict[str, Any], settings: dict[str, Any], allowed: bool) -> None:
    args = MigrationControllerArgs(**settings)
    checked = pod("p", **facts)
    assert (forced(checked) or not Evictability.of(args).problems(checked)) is allowed


def test_the_value_of_the_priority_class_counts_as_threshold() -> None:
    args = MigrationControllerArgs(priority_threshold=PriorityThreshold(name="high"))
    rules = Evictability.of(args, 1000)
    assert rules.problems(pod("p", spec={"priority": 1000}))
    assert not rules.problems(pod("p", spec={"priority": 999}))


def test_all_failed_checks_are_reported() -> None:
    problems = Evictability().problems(pod("p", by="", terminating=True, spec={**EMPTY_DIR, **CRITICAL}))
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("+5", 0),
        ("05", 0),
        ("00", 0),
        ("", 0),
        ("x", 0),
        ("2147483647", 2147483647),
        ("2147483648", 0),
        ("-2147483648", -2147483648),
    ],
)
def test_eviction_cost(text: str, value: int) -> None:
    candidate = pod("p", annotations={COST: text})
    assert cost_of_eviction(candidate) == value
    assert never_evicted(candidate) is (value == 2147483647)
