"""Every registered plugin is compared with a plain implementation, or is listed as deciding nothing."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from control.scheduler.plugins.registry import PLUGINS
from tests.control.scheduler.plain import whole

HERE = Path(__file__).parent.parent

TWINS: dict[str, tuple[str, str, str]] = {
    "Coscheduling": ("gangs", "PlainGangs", "coscheduling/test_gang_decisions_agree.py"),
    "DefaultPreemption": ("preemption", "choices", "plugins/test_preemption_agrees.py"),
    "DeviceShare": ("devices", "decide", "plugins/test_deviceshare_agrees.py"),
    "ElasticQuota": ("quotas", "PlainQuotas", "plugins/test_elasticquota_agrees.py"),
    "ImageLocality": ("images", "image_score", "plugins/test_imagelocality.py"),
    "InterPodAffinity": ("podaffinity", "inter_pod_affinity", "plugins/test_interpodaffinity.py"),
    "InterferenceAware": ("interference", "interference", "plugins/test_small_plugins_agree.py"),
    "LoadAwareScheduling": ("loadaware", "verdict", "plugins/test_loadaware_agrees.py"),
    "NodeAffinity": ("nodechecks", "node_affinity", "plugins/test_nodechecks.py"),
    "NodeNUMAResource": ("numa", "decide", "plugins/test_numa_agrees.py"),
    "NodeName": ("nodechecks", "node_name", "plugins/test_nodechecks.py"),
    "NodePorts": ("ports", "node_ports", "plugins/test_nodeports.py"),
    "NodeResourcesBalancedAllocation": ("resources", "balanced_score", "plugins/test_noderesources.py"),
    "NodeResourcesFit": ("resources", "fit_score", "plugins/test_noderesources.py"),
    "NodeResourcesFitPlus": ("fitplus", "fit_plus_score", "plugins/test_small_plugins_agree.py"),
    "NodeUnschedulable": ("nodechecks", "node_unschedulable", "plugins/test_nodechecks.py"),
    "NodeVolumeLimits": ("volumes", "limits", "plugins/test_volumes_agree.py"),
    "PodTopologySpread": ("spread", "spread", "plugins/test_podtopologyspread.py"),
    "PrioritySort": ("queueing", "in_order", "plugins/test_small_plugins_agree.py"),
    "Reservation": ("reservations", "taken", "plugins/test_reservation_agrees.py"),
    "ScarceResourceAvoidance": ("scarce", "scarce_score", "plugins/test_small_plugins_agree.py"),
    "SchedulingGates": ("queueing", "gated", "plugins/test_small_plugins_agree.py"),
    "SchedulingHint": ("hints", "preferred", "plugins/test_small_plugins_agree.py"),
    "TaintToleration": ("nodechecks", "taint_toleration", "plugins/test_nodechecks.py"),
    "VolumeBinding": ("volumes", "binding", "plugins/test_volumes_agree.py"),
    "VolumeRestrictions": ("volumes", "restrictions", "plugins/test_volumes_agree.py"),
    "VolumeZone": ("volumes", "zone", "plugins/test_volumes_agree.py"),
}
"""Plugin -> (module in `plain`, what decides there, property test that asks both)."""

DECIDE_NOTHING = {
    "DefaultBinder": "sends the binding to the node that was chosen",
    "DefaultPreBind": "sends what other plugins changed in the pod",
    "DynamicResources": "rejects every pod with resource claims",
}
"""Plugin -> what it does instead."""

NOT_IN_A_CYCLE = {
    "Coscheduling": "decides about pods, not nodes; tests/control/scheduler/coscheduling has whole rounds",
    "DefaultPreemption": "comes after a cycle that failed; its test runs whole cycles",
    "DeviceShare": "its test runs whole histories of placements over nodes with devices",
    "ElasticQuota": "decides about pods, not nodes; its test runs whole cycles",
    "NodeNUMAResource": "its test runs whole histories of placements over nodes with topologies",
    "PrioritySort": "decides in the queue",
    "Reservation": "its test runs whole cycles, with reservations that come and go",
    "SchedulingGates": "decides in front of the queue",
}
"""Plugin -> why the whole cycles of test_full_cycle do without it."""


def test_every_registered_plugin_is_listed() -> None:
    assert TWINS.keys().isdisjoint(DECIDE_NOTHING)
    assert set(PLUGINS) == {*TWINS, *DECIDE_NOTHING}


@pytest.mark.parametrize("plugin", sorted(TWINS))
def test_a_property_asks_plugin_and_twin(plugin: str) -> None:
    module, name, test = TWINS[plugin]
    assert callable(getattr(importlib.import_module(f"tests.control.scheduler.plain.{module}"), name))
    text = (HERE / test).read_text()
    assert "@given" in text or "(RuleBasedStateMachine)" in text
    assert plugin in text
    assert re.search(rf"plain(\.{module}| import .*\b{module}\b)", text)


def test_whole_cycles_have_every_plugin_that_decides_about_nodes() -> None:
    held = {"SchedulingHint", *whole.FILTERS, *whole.WEIGHTS, *whole.KOORDINATOR_WEIGHTS}
    assert set(PLUGINS) == held | NOT_IN_A_CYCLE.keys() | DECIDE_NOTHING.keys()
    text = (HERE / "test_full_cycle.py").read_text()
    assert all(part in text for part in ("whole.FILTERS", "whole.KOORDINATOR_WEIGHTS", '"SchedulingHint"'))
