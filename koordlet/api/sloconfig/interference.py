"""`interference-config` and `NodeSLO.spec.extensions.interferenceStrategy`: when a container counts as interfered.

Ours, not Koordinator's, so it lives among the extensions: `PLUGIN` carries the ConfigMap key to every NodeSLO, and
koordlet lays what it finds there over `DEFAULT`. Thresholds are told per resource; the
formula is in docs/interference.md.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from koordlet.api.sloconfig.interferenceactions import InterferenceActions
from koordlet.api.sloconfig.merge import Merged

CONFIG_KEY: Final = "interference-config"
EXTENSION_KEY: Final = "interferenceStrategy"
RESOURCES: Final = ("cpu", "memory", "io", "network", "cache")


class InterferenceThresholds(Frozen):
    """When one resource counts as interfered; percentages of the time that the container wanted to get on."""

    enable: Annotated[bool | None, doc("Whether this resource is judged, default true.")] = None
    lost_percent: Annotated[
        int | None, doc("Time lost to others that is trouble whatever was usual; 0 is never.", minimum=0, maximum=100)
    ] = None
    min_lost_percent: Annotated[
        int | None, doc("Time lost to others below which nothing is wrong.", minimum=0, maximum=100)
    ] = None
    factor_percent: Annotated[
        int | None, doc("Between the two: percent of what is usual for the container at which it is trouble.",
                        minimum=100)
    ] = None  # fmt: skip


class InterferenceStrategy(Frozen):
    """How koordlet detects interference on a node, and whom it tells."""

    enable: Annotated[bool | None, doc("Whether interference is detected, default true.")] = None
    window_seconds: Annotated[int | None, doc("Seconds of evidence that one evaluation looks at.", minimum=1)] = None
    min_duration_seconds: Annotated[
        int | None, doc("Seconds that trouble must last to be reported, and must be over to be taken back.", minimum=1)
    ] = None
    leave_percent: Annotated[
        int | None, doc("Trouble is over below this percent of the score at which it began.", minimum=1, maximum=99)
    ] = None
    half_life_seconds: Annotated[
        int | None, doc("Seconds after which what was usual counts half.", minimum=1)
    ] = None  # fmt: skip
    learn_seconds: Annotated[
        int | None, doc("Seconds to watch a container before its own usual values count.", minimum=1)
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
    cache: Annotated[
        InterferenceThresholds | None, doc("Cycles per instruction; only factorPercent counts.")
    ] = None  # fmt: skip
    actions: Annotated[InterferenceActions | None, doc("What is done about best-effort culprits, default nothing.")] = (
        None
    )


DEFAULT: Final = InterferenceStrategy(
    enable=True,
    window_seconds=3,
    min_duration_seconds=4,
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
    """A strategy that cannot be used; the message names the field."""


def problems(strategy: InterferenceStrategy | None) -> dict[str, str]:
    """Field path -> reason for everything that is out of bounds."""
    found = broken(strategy, BOUNDS)
    for name in strategy.victim_qos_classes if strategy is not None else ():
        if name not in CLASSES:
            found["victimQOSClasses"] = f"{name!r} is none of {', '.join(CLASSES)}"
    return {**found, **interferenceactions.problems(None if strategy is None else strategy.actions)}


def effective(extensions: Mapping[str, Any]) -> InterferenceStrategy:
    """What NodeSLO's extension values (`api.slo.extension_values`) say, over the defaults.

    Raises InterferenceConfigError naming the field.
    """
    given = extensions.get(EXTENSION_KEY)
    if given is None:
        return DEFAULT
    try:
        strategy = msgspec.convert(given, InterferenceStrategy)
    except msgspec.ValidationError as error:
        raise InterferenceConfigError(f"extensions.{EXTENSION_KEY}: {error}") from error
    found = problems(strategy)
    if found:
        text = "; ".join(f"{path}: {reason}" for path, reason in found.items())
        raise InterferenceConfigError(f"extensions.{EXTENSION_KEY}.{text}")
    return overlay(DEFAULT, strategy)


# --- the ConfigMap's key


class NodeInterferenceStrategy(InterferenceStrategy):
    """A node entry of `interference-config`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class InterferenceConfig(Frozen):
    """`interference-config`."""

    cluster_strategy: InterferenceStrategy | None = None
    node_strategies: list[NodeInterferenceStrategy] = msgspec.field(default_factory=list)


class InterferencePlugin:
    """Carries `interference-config` to `NodeSLO.spec.extensions`. Without the key NodeSLO says nothing."""

    name = "interference"

    def merge(self, old: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
        """The configuration map with the merged strategies under the ConfigMap's key."""
        config = {key: value for key, value in old.items() if key != CONFIG_KEY}
        if CONFIG_KEY not in data:
            return config
        try:
            document: InterferenceConfig = decode(data[CONFIG_KEY], InterferenceConfig, where=CONFIG_KEY)
        except WireError as error:
            raise ExtensionError(str(error)) from error
        for where, strategy in [("clusterStrategy", document.cluster_strategy)] + [
            (f"nodeStrategies[{entry.name or index}]", entry) for index, entry in enumerate(document.node_strategies)
        ]:
            found = problems(strategy)
            if found:
                text = "; ".join(f"{where}.{path}: {reason}" for path, reason in found.items())
                raise ExtensionError(f"{CONFIG_KEY}: {text}")
        config[CONFIG_KEY] = Merged.build(DEFAULT, document.cluster_strategy, document.node_strategies)
        return config

    def get(self, labels: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, Any]:
        """The strategy of a node with these labels; None without the key."""
        merged: Merged[InterferenceStrategy] | None = config.get(CONFIG_KEY)
        return EXTENSION_KEY, None if merged is None else to_builtins(merged.for_node(labels))


PLUGIN: Final = InterferencePlugin()
