"""`interference-config` and `NodeSLO.spec.extensions.interferenceStrategy`: detection of interference.

An addition to Koordinator, so it is one of the extensions: `InterferencePlugin` copies the ConfigMap key to every
NodeSLO, and koordlet merges it over `DEFAULT`. Thresholds are per resource; the formula is in docs/interference.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import WireError, decode, overlay, to_builtins
from koordlet.api.meta import LabelSelector
from koordlet.api.qos import CLASSES, LS, LSE, LSR
from koordlet.api.sloconfig import interferenceactions
from koordlet.api.sloconfig.bounds import Bound, broken
from koordlet.api.sloconfig.extensions import ExtensionError
from koordlet.api.sloconfig.interferenceactions import InterferenceActionsConfig
from koordlet.api.sloconfig.merge import MergedStrategies

CONFIG_KEY: Final = "interference-config"
EXTENSION_KEY: Final = "interferenceStrategy"
RESOURCES: Final = ("cpu", "memory", "io", "network", "cache")


class InterferenceThresholds(Frozen):
    """Thresholds of one resource, in percent of the running time that the container demands."""

    enable: Annotated[bool | None, doc("Whether this resource is evaluated, default true.")] = None
    lost_percent: Annotated[
        int | None,
        doc("Lost time that is interference whatever is usual; 0: never.", minimum=0, maximum=100),
    ] = None
    min_lost_percent: Annotated[
        int | None, doc("Lost time below which there is no interference.", minimum=0, maximum=100)
    ] = None
    factor_percent: Annotated[
        int | None,
        doc("Between the two: percentage of the container's usual value that is interference.", minimum=100),
    ] = None


class InterferenceStrategy(Frozen):
    """How koordlet detects and reports interference on a node."""

    enable: Annotated[bool | None, doc("Whether interference is detected, default true.")] = None
    window_seconds: Annotated[int | None, doc("Seconds of evidence of one evaluation.", minimum=1)] = None
    min_duration_seconds: Annotated[
        int | None, doc("Seconds that interference must last, or be absent, before the state changes.", minimum=1)
    ] = None
    leave_percent: Annotated[
        int | None,
        doc("Interference ends below this percentage of the score at which it began.", minimum=1, maximum=99),
    ] = None
    half_life_seconds: Annotated[int | None, doc("Half-life of a container's usual values, seconds.", minimum=1)] = None
    learn_seconds: Annotated[
        int | None, doc("Seconds of observation before a container's own usual values are used.", minimum=1)
    ] = None
    victim_qos_classes: Annotated[
        list[str], doc("QoS classes whose containers can be victims; default LSE, LSR and LS.")
    ] = msgspec.field(default_factory=list, name="victimQOSClasses")
    event: Annotated[bool | None, doc("Whether a victim pod gets an Event, default true.")] = None
    node_metric: Annotated[bool | None, doc("Whether verdicts go into NodeMetric, default true.")] = None
    cpu: Annotated[InterferenceThresholds | None, doc("Waiting for a CPU.")] = None
    memory: Annotated[InterferenceThresholds | None, doc("Waiting for memory.")] = None
    io: Annotated[InterferenceThresholds | None, doc("Waiting for a block device.")] = None
    network: Annotated[InterferenceThresholds | None, doc("Waiting for the network.")] = None
    cache: Annotated[InterferenceThresholds | None, doc("Cycles per instruction; only factorPercent is used.")] = None
    actions: Annotated[InterferenceActionsConfig | None, doc("Actions on best-effort culprits, default none.")] = None


DEFAULT: Final = InterferenceStrategy(
    enable=True,
    window_seconds=3,
    min_duration_seconds=3,
    leave_percent=60,
    half_life_seconds=1200,
    learn_seconds=60,
    victim_qos_classes=[LSE, LSR, LS],
    event=True,
    node_metric=True,
    cpu=InterferenceThresholds(enable=True, lost_percent=20, min_lost_percent=8, factor_percent=300),
    memory=InterferenceThresholds(enable=True, lost_percent=15, min_lost_percent=5, factor_percent=300),
    io=InterferenceThresholds(enable=True, lost_percent=30, min_lost_percent=10, factor_percent=300),
    network=InterferenceThresholds(enable=True, lost_percent=10, min_lost_percent=5, factor_percent=300),
    cache=InterferenceThresholds(enable=True, lost_percent=0, min_lost_percent=0, factor_percent=160),
    actions=interferenceactions.DEFAULT,
)

BOUNDS: Final = (
    Bound("windowSeconds", 1, 60),
    Bound("minDurationSeconds", 1, 600),
    Bound("leavePercent", 1, 99),
    Bound("halfLifeSeconds", minimum=1),
    Bound("learnSeconds", minimum=1),
    *(Bound(f"{name}.{field}", 0, 100) for name in RESOURCES for field in ("lostPercent", "minLostPercent")),
    *(Bound(f"{name}.factorPercent", minimum=100) for name in RESOURCES),
    *interferenceactions.BOUNDS,
)


class InterferenceConfigError(ValueError):
    """An invalid strategy; the message names the field."""


def problems(strategy: InterferenceStrategy | None) -> dict[str, str]:
    """Field path -> reason for every invalid field."""
    reasons = broken(strategy, BOUNDS)
    for name in strategy.victim_qos_classes if strategy is not None else ():
        if name not in CLASSES:
            reasons["victimQOSClasses"] = f"{name!r} is not one of {', '.join(CLASSES)}"
    return {**reasons, **interferenceactions.problems(None if strategy is None else strategy.actions)}


def effective(extensions: Mapping[str, Any]) -> InterferenceStrategy:
    """The strategy in NodeSLO's extension values (`crs.slo.extension_values`), merged over the defaults.

    Raises InterferenceConfigError, which names the field.
    """
    extension = extensions.get(EXTENSION_KEY)
    if extension is None:
        return DEFAULT
    try:
        strategy = msgspec.convert(extension, InterferenceStrategy)
    except msgspec.ValidationError as error:
        raise InterferenceConfigError(f"extensions.{EXTENSION_KEY}: {error}") from error
    reasons = problems(strategy)
    if reasons:
        text = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        raise InterferenceConfigError(f"extensions.{EXTENSION_KEY}.{text}")
    return overlay(DEFAULT, strategy)


class NodeInterferenceStrategy(InterferenceStrategy):
    """A node entry of `interference-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class InterferenceConfig(Frozen):
    """`interference-config`."""

    cluster_strategy: InterferenceStrategy | None = None
    node_strategies: list[NodeInterferenceStrategy] = []


class InterferencePlugin:
    """Copies `interference-config` to `NodeSLO.spec.extensions`, merged over `base`, which gets the ConfigMap's data.
    Without the key and without a base, NodeSLO has no such extension."""

    name = "interference"

    def __init__(self, base: Callable[[Mapping[str, str]], InterferenceStrategy | None] = lambda _: None) -> None:
        self._base = base

    def merge(self, old: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
        """The configuration map with the merged strategies under the ConfigMap's key."""
        config = {key: value for key, value in old.items() if key != CONFIG_KEY}
        try:
            base = self._base(data)
            if CONFIG_KEY not in data:
                return config if base is None else {**config, CONFIG_KEY: MergedStrategies(base)}
            document: InterferenceConfig = decode(data[CONFIG_KEY], InterferenceConfig, where=CONFIG_KEY)
        except WireError as error:
            raise ExtensionError(str(error)) from error
        for where, strategy in [("clusterStrategy", document.cluster_strategy)] + [
            (f"nodeStrategies[{entry.name or index}]", entry) for index, entry in enumerate(document.node_strategies)
        ]:
            reasons = problems(strategy)
            if reasons:
                text = "; ".join(f"{where}.{path}: {reason}" for path, reason in reasons.items())
                raise ExtensionError(f"{CONFIG_KEY}: {text}")
        config[CONFIG_KEY] = MergedStrategies.build(
            DEFAULT if base is None else base, document.cluster_strategy, document.node_strategies
        )
        return config

    def get(self, labels: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, Any]:
        """The strategy of a node with these labels; None if it has none."""
        merged: MergedStrategies[InterferenceStrategy] | None = config.get(CONFIG_KEY)
        return EXTENSION_KEY, None if merged is None else to_builtins(merged.for_node(labels))
