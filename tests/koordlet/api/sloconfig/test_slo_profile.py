"""`strategy-profile`: what it changes, what takes precedence over it, and invalid values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.api.crs.slo import extension_values
from koordlet.api.sloconfig import defaults, interference
from koordlet.api.sloconfig.configmap import UNREAD, SLOConfig, load
from koordlet.api.sloconfig.extensions import ExtensionError, extensions_for_node
from koordlet.api.sloconfig.interferenceactions import enabled
from koordlet.api.sloconfig.profile import INTERFERENCE_PLUGIN, PROFILE_KEY, PROFILES, RECOMMENDED
from koordlet.api.sloconfig.webhook import PARAM_INVALID, PARSE_FAILED, validate
from tests.present import present

PROFILE = {PROFILE_KEY: '{"profile": "recommended"}'}


def loaded(data: dict[str, str]) -> SLOConfig:
    config, problems = load(UNREAD, data)
    assert problems == ()
    return config


def strategy_of(data: dict[str, str]) -> interference.InterferenceStrategy:
    """As koordlet reads it from its NodeSLO."""
    values, errors = extensions_for_node((INTERFERENCE_PLUGIN,), {}, INTERFERENCE_PLUGIN.merge({}, data), {})
    assert not errors
    return interference.effective(extension_values({"Object": values}))


@pytest.mark.parametrize("text", ["", "{}", '{"profile": ""}', '{"profile": "koordinator"}'])
def test_without_a_profile_the_defaults_are_koordinators(text: str) -> None:
    config = loaded({PROFILE_KEY: text})
    assert present(config.threshold).cluster == defaults.THRESHOLD
    assert present(config.qos).cluster == defaults.MANAGER_QOS
    assert INTERFERENCE_PLUGIN.merge({}, {PROFILE_KEY: text}) == {}


def test_one_key_switches_cpu_identity_suppression_and_actions_on() -> None:
    config = loaded(PROFILE)
    threshold = present(config.threshold).cluster
    assert (threshold.enable, threshold.cpu_suppress_threshold_percent) == (True, 95)
    assert threshold.memory_evict_threshold_percent == defaults.THRESHOLD.memory_evict_threshold_percent
    best_effort = present(defaults.effective_qos(present(config.qos).cluster).be_class)
    cpu = present(best_effort.cpu_qos)
    assert (cpu.enable, cpu.group_identity) == (True, -1)
    assert enabled(strategy_of(PROFILE).actions).keys() == {"memory", "io", "network"}


def test_other_keys_take_precedence_over_the_profile() -> None:
    node = {"name": "old", "nodeSelector": {"matchLabels": {"pool": "old"}}, "cpuSuppressThresholdPercent": 50}
    data = {
        **PROFILE,
        "resource-threshold-config": json.dumps(
            {"clusterStrategy": {"cpuSuppressThresholdPercent": 80}, "nodeStrategies": [node]}
        ),
        "resource-qos-config": '{"clusterStrategy": {"beClass": {"cpuQOS": {"enable": false}}}}',
        "interference-config": '{"clusterStrategy": {"windowSeconds": 5, "actions": {"io": {"enable": false}}}}',
    }
    threshold, qos = present(loaded(data).threshold), present(loaded(data).qos)
    assert (threshold.cluster.enable, threshold.cluster.cpu_suppress_threshold_percent) == (True, 80)
    assert threshold.for_node({"pool": "old"}).cpu_suppress_threshold_percent == 50
    assert present(present(qos.cluster.be_class).cpu_qos).enable is False
    strategy = strategy_of(data)
    assert strategy.window_seconds == 5
    assert enabled(strategy.actions).keys() == {"memory", "network"}


def test_the_installed_configuration_keeps_the_profiles_threshold() -> None:
    config = loaded({**PROFILE, "resource-threshold-config": '{"clusterStrategy": {"enable": true}}'})
    assert present(config.threshold).cluster == PROFILES[RECOMMENDED].threshold


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        (
            '{"profile": "fast"}',
            PARAM_INVALID,
            "profile: 'fast' is not one of koordinator, recommended",
        ),
        ('{"profile": 1}', PARSE_FAILED, "strategy-profile: profile: "),
        ("{", PARSE_FAILED, "strategy-profile: "),
    ],
)
def test_an_invalid_profile_is_refused_and_the_last_one_stays(text: str, reason: str, message: str) -> None:
    first = loaded(PROFILE)
    values = INTERFERENCE_PLUGIN.merge({}, PROFILE)
    after, problems = load(first, {PROFILE_KEY: text})
    assert (after.threshold, after.qos, after.profile) == (first.threshold, first.qos, RECOMMENDED)
    assert [problem.key for problem in problems] == [PROFILE_KEY]
    assert message in problems[0].message
    with pytest.raises(ExtensionError, match="strategy-profile"):
        INTERFERENCE_PLUGIN.merge(values, {PROFILE_KEY: text})
    refused: Any = present(validate({PROFILE_KEY: text}, PROFILE))
    assert refused.reason == reason
    assert message.rpartition(": ")[2] in str(refused)


def test_an_unchanged_profile_is_not_checked_again() -> None:
    bad = {PROFILE_KEY: '{"profile": "fast"}'}
    assert validate(bad, bad) is None
    assert validate(PROFILE) is None
