"""CPU normalization and resource amplification (spec 01 §6.5.7, §6.5.8), and extension plug-ins (§6.5.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordlet.api.sloconfig.extensions import ExtensionError, extensions_for_node, merge_extensions
from koordlet.api.sloconfig.normalization import (
    CPUNormalizationStrategy,
    ModelRatios,
    RatioError,
    ResourceAmplificationStrategy,
    amplification_ratios,
    normalization_ratio,
)

STRATEGY = CPUNormalizationStrategy(
    enable=True,
    ratio_model={
        "x": ModelRatios(
            base_ratio=1.5,
            hyper_thread_enabled_ratio=1.0,
            turbo_enabled_ratio=1.8,
            hyper_thread_turbo_enabled_ratio=1.2,
        ),
        "half": ModelRatios(base_ratio=1.1),
        "wild": ModelRatios(base_ratio=5.1, turbo_enabled_ratio=0.9),
    },
)


@pytest.mark.parametrize(
    ("hyper_thread", "turbo", "ratio"), [(True, True, 1.2), (True, False, 1.0), (False, True, 1.8), (False, False, 1.5)]
)
def test_ratio_by_enabled_features(hyper_thread: bool, turbo: bool, ratio: float) -> None:
    assert normalization_ratio(STRATEGY, "x", hyper_thread=hyper_thread, turbo=turbo) == ratio


def test_default_ratio_fills_gaps() -> None:
    with_default = CPUNormalizationStrategy(default_ratio=1.3, ratio_model=STRATEGY.ratio_model)
    assert normalization_ratio(with_default, "unknown", hyper_thread=False, turbo=False) == 1.3
    assert normalization_ratio(with_default, "half", hyper_thread=True, turbo=False) == 1.3


@pytest.mark.parametrize(
    ("model", "turbo", "message"),
    [("unknown", False, "no ratio"), ("half", True, "no ratio"), ("wild", False, "5.1"), ("wild", True, "0.9")],
)
def test_no_usable_ratio(model: str, turbo: bool, message: str) -> None:
    with pytest.raises(RatioError, match=message):
        normalization_ratio(STRATEGY, model, hyper_thread=False, turbo=turbo)


def amplify(enable: bool | None, normalization: float | None, **ratios: float) -> dict[str, float]:
    strategy = ResourceAmplificationStrategy(enable=enable, resource_amplification_ratio=ratios)
    return amplification_ratios(strategy, normalization)


def test_amplification() -> None:
    assert amplify(True, 1.2, cpu=1.5, memory=1.2) == pytest.approx({"cpu": 1.8, "memory": 1.2})
    assert amplify(False, 1.2, cpu=1.5, memory=1.2) == {"cpu": 1.2}
    assert amplify(None, None, cpu=1.5) == {}
    assert amplify(True, 0.9, cpu=1.0) == {"cpu": 1.0}
    assert amplify(True, -1, memory=1.0) == {"memory": 1.0}
    with pytest.raises(RatioError, match="of memory is below 1"):
        amplify(True, None, memory=0.5)
    with pytest.raises(RatioError, match="of cpu is below 1"):
        amplify(True, None, cpu=0.5)


class Plugin:
    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self.fails = name, fails

    def merge(self, old: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
        if self.fails:
            raise ExtensionError("cannot")
        return {**old, self.name: data.get(self.name)}

    def get(self, labels: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, Any]:
        if self.fails:
            raise ExtensionError("cannot")
        return self.name, config[self.name] if labels.get("wants") == self.name else None


def test_extension_plugins() -> None:
    plugins = [Plugin("a"), Plugin("broken", fails=True), Plugin("b")]
    config, errors = merge_extensions(plugins, {"foreign": 1}, {"a": "1", "b": "2"})
    assert config == {"foreign": 1, "a": "1", "b": "2"} and errors == {"broken": "cannot"}
    result, errors = extensions_for_node(plugins, {"wants": "b"}, config, {"a": "old", "foreign": {"x": 1}})
    assert result == {"b": "2", "foreign": {"x": 1}} and errors == {"broken": "cannot"}
    assert extensions_for_node([], {}, {}, {}) == ({}, {})
