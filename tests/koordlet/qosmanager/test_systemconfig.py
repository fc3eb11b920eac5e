"""System settings: the worked examples of spec 03 §3.8."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.qosmanager.strategies.systemconfig import SystemConfigStrategy, min_free_kbytes
from koordlet.resourceexecutor import Setting
from tests.koordlet.qosmanager.conftest import make_node, make_view
from tests.present import present


def decided(memory: str = "120Gi", **strategy: Any) -> dict[Setting, int]:
    view = make_view(node=make_node(memory=memory), slo={"systemStrategy": strategy})
    return {update.setting: update.value for update in present(SystemConfigStrategy().decide(view)).updates}  # type: ignore[misc]


@pytest.mark.parametrize(("gibibytes", "factor", "expected"), [(120, 100, 1_258_291), (8, 1, 838)])
def test_min_free_kbytes_of_a_capacity(gibibytes: int, factor: int, expected: int) -> None:
    assert min_free_kbytes(gibibytes << 30, factor) == expected


def test_only_set_values_are_declared() -> None:
    assert decided() == {}
    assert decided(minFreeKbytesFactor=100, watermarkScaleFactor=150) == {
        Setting("min_free_kbytes"): 1_258_291,
        Setting("watermark_scale_factor"): 150,
    }


def test_the_vendors_parameters_and_scheduler_features() -> None:
    settings = decided(
        memcgReapBackGround=1, schedGroupIdentityEnabled=0, schedIdleSaverWmark=7, pageCacheLimitEnabled=1,
        schedFeatures={"ID_EXPELLER_SHARE_CORE": False, "CORE_SCHED": True},
    )  # fmt: skip
    assert {setting.label: value for setting, value in settings.items()} == {
        "reap_background": 1,
        "sched_group_identity_enabled": 0,
        "sched_idle_saver_wmark": 7,
        "enabled": 1,
        "sched_features[ID_EXPELLER_SHARE_CORE]": 0,
        "sched_features[CORE_SCHED]": 1,
    }


def test_no_decision_before_the_nodes_memory_is_known() -> None:
    assert SystemConfigStrategy().decide(make_view(node=None)) is None
