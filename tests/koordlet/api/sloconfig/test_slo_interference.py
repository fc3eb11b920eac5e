"""interferenceStrategy: defaults, merging with NodeSLO, the ConfigMap's key, and validation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.api.crs.slo import NodeSLO, extension_values
from koordlet.api.encoding.wire import decode, encode
from koordlet.api.sloconfig.extensions import ExtensionError, extensions_for_node, merge_extensions
from koordlet.api.sloconfig.interference import (
    CONFIG_KEY,
    DEFAULT,
    EXTENSION_KEY,
    RESOURCES,
    InterferenceConfigError,
    InterferencePlugin,
    effective,
    problems,
)
from koordlet.api.sloconfig.interferenceactions import enabled
from koordlet.api.sloconfig.webhook import PARAM_INVALID, PARSE_FAILED, validate
from tests.present import present

PLUGIN = InterferencePlugin()


def config(cluster: dict[str, Any] | None = None, *nodes: dict[str, Any]) -> dict[str, str]:
    return {CONFIG_KEY: json.dumps({"clusterStrategy": cluster, "nodeStrategies": list(nodes)})}


def test_the_defaults_are_whole_and_within_their_bounds() -> None:
    assert not problems(DEFAULT)
    assert DEFAULT.enable is True
    assert all(getattr(DEFAULT, name).factor_percent for name in RESOURCES)
    assert effective({}) is DEFAULT


def test_fields_omitted_in_nodeslo_keep_their_default() -> None:
    strategy = effective({EXTENSION_KEY: {"minDurationSeconds": 9, "cpu": {"lostPercent": 50}, "event": False}})
    assert (strategy.min_duration_seconds, strategy.event, strategy.enable) == (9, False, True)
    assert strategy.cpu is not None
    assert DEFAULT.cpu is not None
    assert (strategy.cpu.lost_percent, strategy.cpu.factor_percent) == (50, DEFAULT.cpu.factor_percent)
    assert strategy.memory == DEFAULT.memory


@pytest.mark.parametrize(
    ("extension", "says"),
    [
        pytest.param({"minDurationSeconds": "soon"}, "minDurationSeconds", id="type"),
        pytest.param({"cpu": {"lostPercent": 101}}, "cpu.lostPercent", id="percent"),
        pytest.param({"io": {"factorPercent": 90}}, "io.factorPercent", id="factor"),
        pytest.param({"leavePercent": 100}, "leavePercent", id="no-hysteresis"),
        pytest.param({"windowSeconds": 0}, "windowSeconds", id="no-window"),
        pytest.param({"victimQOSClasses": ["LS", "XX"]}, "victimQOSClasses", id="class"),
        pytest.param([], "interferenceStrategy", id="no-object"),
        pytest.param({"actions": {"cpu": {"policy": "stop"}}}, "actions.cpu.policy", id="action-policy"),
        pytest.param({"actions": {"io": {"policy": "quota"}}}, "actions.io.policy", id="another-resources-policy"),
        pytest.param({"actions": {"memory": {"floorPercent": 0}}}, "actions.memory.floorPercent", id="no-floor"),
        pytest.param({"actions": {"cpu": {"stepPercent": 51}}}, "actions.cpu.stepPercent", id="action-step"),
        pytest.param({"actions": {"cpu": {"evictAfterSeconds": -1}}}, "evictAfterSeconds", id="negative"),
        pytest.param({"actions": {"cpu": {"enable": "yes"}}}, "actions.cpu.enable", id="action-type"),
        pytest.param({"actions": {"minSharePercent": 0}}, "actions.minSharePercent", id="blame-for-nothing"),
    ],
)
def test_a_malformed_strategy_names_its_field(extension: dict[str, Any] | list[Any], says: str) -> None:
    with pytest.raises(InterferenceConfigError, match=says):
        effective({EXTENSION_KEY: extension})


def test_actions_are_off_by_default_and_partial_actions_keep_the_other_defaults() -> None:
    assert enabled(DEFAULT.actions) == {}
    actions = effective({EXTENSION_KEY: {"actions": {"cpu": {"enable": True, "floorPercent": 30}}}}).actions
    assert list(enabled(actions)) == ["cpu"]
    assert actions is not None
    assert actions.cpu is not None
    assert actions is not None
    assert DEFAULT.actions is not None
    assert DEFAULT.actions.cpu is not None
    assert DEFAULT.actions is not None
    assert (actions.cpu.floor_percent, actions.cpu.step_percent) == (30, DEFAULT.actions.cpu.step_percent)
    assert (actions.memory, actions.min_share_percent) == (DEFAULT.actions.memory, DEFAULT.actions.min_share_percent)


def test_the_configmap_is_copied_to_nodeslo_for_cluster_and_nodes() -> None:
    data = config(
        {"minDurationSeconds": 6, "actions": {"cpu": {"enable": True}}},
        {
            "name": "gpu",
            "nodeSelector": {"matchLabels": {"pool": "gpu"}},
            "cpu": {"lostPercent": 40},
            "actions": {"cpu": {"enable": False}},
        },
    )
    merged, errors = merge_extensions([PLUGIN], {"other": 1}, data)
    assert not errors
    assert merged["other"] == 1
    plain, errors = extensions_for_node([PLUGIN], {}, merged, {"foreign": {"a": 1}})
    assert not errors
    gpu, _ = extensions_for_node([PLUGIN], {"pool": "gpu"}, merged, {})
    assert plain["foreign"] == {"a": 1}
    assert effective(plain).min_duration_seconds == 6
    assert effective(plain).cpu == DEFAULT.cpu
    assert present(effective(gpu).cpu).lost_percent == 40
    assert effective(gpu).min_duration_seconds == 6
    assert [list(enabled(effective(spec).actions)) for spec in (plain, gpu)] == [["cpu"], []]
    slo = NodeSLO()
    slo.spec.extensions = {"Object": plain}
    again: NodeSLO = decode(encode(slo), NodeSLO)
    assert effective(extension_values(again.spec.extensions)).min_duration_seconds == 6


def test_without_the_key_nodeslo_has_no_extension() -> None:
    merged, _ = merge_extensions([PLUGIN], {}, config({"enable": False}))
    merged, errors = merge_extensions([PLUGIN], merged, {})
    assert not errors
    values, _ = extensions_for_node([PLUGIN], {}, merged, {EXTENSION_KEY: {"enable": False}, "foreign": 1})
    assert values == {"foreign": 1}


@pytest.mark.parametrize(
    "text", ["{", '{"clusterStrategy": {"cpu": {"lostPercent": 300}}}', '{"nodeStrategies": [{"leavePercent": 0}]}']
)
def test_a_malformed_key_keeps_the_last_good_one(text: str) -> None:
    merged, _ = merge_extensions([PLUGIN], {}, config({"minDurationSeconds": 6}))
    again, errors = merge_extensions([PLUGIN], merged, {CONFIG_KEY: text})
    assert errors[PLUGIN.name].startswith(CONFIG_KEY)
    assert again == merged
    with pytest.raises(ExtensionError, match=CONFIG_KEY):
        PLUGIN.merge({}, {CONFIG_KEY: text})


def test_the_webhook_validates_the_key() -> None:
    assert validate(config({"cpu": {"lostPercent": 30}})) is None
    assert present(validate({CONFIG_KEY: "{"})).reason == PARSE_FAILED
    wrong = validate(config({"cpu": {"lostPercent": 101}, "victimQOSClasses": ["no"]}))
    assert wrong is not None
    assert wrong.reason == PARAM_INVALID
    assert set(wrong.message) == {"clusterStrategy.cpu.lostPercent", "clusterStrategy.victimQOSClasses"}
    entry = {"name": "a", "nodeSelector": {"matchLabels": {"a": "b"}}, "windowSeconds": 0}
    assert set(present(validate(config(None, entry))).message) == {"nodeStrategies[a].windowSeconds"}
