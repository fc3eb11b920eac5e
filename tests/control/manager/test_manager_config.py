"""The configuration in force: the effect of each kind of error, and its events (spec 04 §3.4, §3.5)."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from control.manager.config import ConfigCache
from koordlet.api.core import ConfigMap, Node
from koordlet.api.meta import ObjectMeta
from koordlet.api.sloconfig.configmap import UNREAD
from koordlet.kube import Client, ClientConfig

COLOCATION = "colocation-config"


class Events:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.expected: list[tuple[str, str]] = []

    def warning(self, about: object, reason: str, message: str) -> None:
        self.expected.append((reason, message))


class World:
    """A cache that is fed by hand, as its informer would."""

    def __init__(self, *, strict_parity: bool = False) -> None:
        self.events, self.registry = Events(), CollectorRegistry()
        self.cache = ConfigCache(
            Client(ClientConfig("http://127.0.0.1:1")), self.events, namespace="ns", name="slo",  # type: ignore[arg-type]
            registry=self.registry, strict_parity=strict_parity,
        )  # fmt: skip
        self.changes = 0
        self.cache.subscribe(lambda old, new: self._changed())
        self._version = 0

    def _changed(self) -> None:
        self.changes += 1

    def says(self, **data: str) -> None:
        """The ConfigMap is created or updated; underscores in keys are dashes."""
        self._version += 1
        named = {key.replace("_", "-"): text for key, text in data.items()}
        meta = ObjectMeta(name="slo", namespace="ns", uid="u", resource_version=str(self._version))
        self.cache.informer._take(ConfigMap(metadata=meta, data=named))

    def is_synced(self) -> None:
        self.cache.informer.synced.set()

    def goes(self) -> None:
        self.cache.informer._delete("ns/slo")

    def percent(self, labels: dict[str, str] | None = None, annotation: str | None = None) -> Any:
        key = "node.koordinator.sh/colocation-strategy"
        annotations = {} if annotation is None else {key: annotation}
        strategy = self.cache.strategy(Node(metadata=ObjectMeta(labels=labels or {}, annotations=annotations)))
        return strategy and strategy.cpu_reclaim_threshold_percent


def test_there_is_no_configuration_before_the_first_sync() -> None:
    world = World()
    assert world.cache.current is UNREAD and world.percent() is None
    world.is_synced()
    assert world.percent() == 60 and world.cache.current.colocation_error  # there is no ConfigMap


def test_subscribers_are_not_notified_without_a_change() -> None:
    world = World()
    world.says(colocation_config='{"cpuReclaimThresholdPercent": 70}')
    assert (world.percent(), world.changes) == (70, 1)
    world.says(colocation_config='{"cpuReclaimThresholdPercent": 70}')
    world.says(colocation_config=' {"cpuReclaimThresholdPercent":70}')
    assert world.changes == 1
    world.goes()
    assert (world.percent(), world.changes) == (70, 1)
    world.says()
    assert (world.percent(), world.changes) == (60, 2)


REFUSED = {
    "no JSON": ("{", "ColocationCfgUnmarshalFailed", "is not valid JSON"),
    "a wrong type": (
        '{"nodeConfigs": [{"cpuReclaimThresholdPercent": "x"}]}',
        "ColocationCfgUnmarshalFailed",
        "nodeConfigs[0].cpuReclaimThresholdPercent",
    ),
    "out of bounds": (
        '{"degradeTimeMinutes": 0}',
        "ColocationCfgInvalid",
        "degradeTimeMinutes: 0 is not greater than 0",
    ),
}


@pytest.mark.parametrize(("text", "reason", "expected"), REFUSED.values(), ids=REFUSED)
def test_the_last_good_value_is_kept_and_only_one_replica_sends_events(text: str, reason: str, expected: str) -> None:
    world = World()
    world.says(colocation_config='{"cpuReclaimThresholdPercent": 70}')
    world.says(colocation_config=text)
    assert world.percent() == 70 and world.cache.current.colocation_error
    assert COLOCATION in world.cache.bad
    assert world.registry.get_sample_value("koord_manager_config_key_bad", {"key": COLOCATION}) == 1
    assert world.events.expected == []  # not the leader
    world.cache.send_events()
    ((sent, message),) = world.events.expected
    assert sent == reason and message.startswith(f"{COLOCATION}: ") and expected in message
    world.says(colocation_config=text + " ")
    assert len(world.events.expected) == 2
    world.says(colocation_config="{}")
    assert world.percent() == 60 and not world.cache.bad
    assert world.registry.get_sample_value("koord_manager_config_key_bad", {"key": COLOCATION}) == 0
    assert len(world.events.expected) == 2


def test_problems_fixed_before_leading_cause_no_event() -> None:
    world = World()
    world.says(colocation_config="{")
    assert world.percent() is None  # never anything usable
    world.says(colocation_config="{}")
    world.cache.send_events()
    assert world.events.expected == []


def test_an_invalid_extension_causes_an_event() -> None:
    world = World()
    world.cache.send_events()
    world.says(interference_config='{"clusterStrategy": {"windowSeconds": 9}}')
    kept = world.cache.extension_values
    world.says(interference_config='{"clusterStrategy": {"windowSeconds": 0}}')
    assert world.cache.extension_values == kept
    assert [reason for reason, _ in world.events.expected] == ["SLOCfgUnmarshalFailed"]
    assert "clusterStrategy.windowSeconds" in world.events.expected[0][1]


def test_an_entry_out_of_bounds_becomes_the_cluster_strategy() -> None:
    world = World()
    world.says(
        colocation_config='{"cpuReclaimThresholdPercent": 70, "nodeConfigs": ['
        '{"nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuReclaimThresholdPercent": -1},'
        '{"nodeSelector": {"matchLabels": {"pool": "b"}}, "cpuReclaimThresholdPercent": 80},'
        '{"nodeSelector": {}, "cpuReclaimThresholdPercent": 90}]}'
    )
    assert [world.percent({"pool": pool}) for pool in "abc"] == [70, 80, 90]


LABEL = "node.koordinator.sh/cpu-reclaim-ratio"
NODES: dict[str, tuple[dict[str, str], str | None, int, int]] = {
    "nothing": ({}, None, 60, 60),
    "annotation": ({}, '{"cpuReclaimThresholdPercent": 100}', 100, 100),
    "the label wins": ({LABEL: "0.8"}, '{"cpuReclaimThresholdPercent": 100}', 80, 80),
    "annotation that is no JSON": ({}, "{", 60, 60),
    "annotation out of bounds": ({}, '{"cpuReclaimThresholdPercent": -5}', 60, -5),
    "label that is no number": ({LABEL: "most"}, None, 60, 60),
    "negative label": ({LABEL: "-1"}, None, 60, 60),
    "0.29": ({LABEL: "0.29"}, None, 29, 28),
    "0.57": ({LABEL: "0.57"}, None, 57, 56),
    "1.15": ({LABEL: "1.15"}, None, 115, 114),
}


@pytest.mark.parametrize("strict", [False, True], ids=["ours", "strict parity"])
@pytest.mark.parametrize(("labels", "annotation", "ours", "theirs"), NODES.values(), ids=NODES)
def test_the_strategy_of_a_node(
    strict: bool, labels: dict[str, str], annotation: str | None, ours: int, theirs: int
) -> None:
    world = World(strict_parity=strict)
    world.says(colocation_config="{}")
    assert world.percent(labels, annotation) == (theirs if strict else ours)
