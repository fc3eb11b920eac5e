"""Arguments of the migration controller: defaults and strict checks (spec 07 §2.3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.component.reading import Reader
from control.descheduler.migration.decide.args import GATES, MigrationControllerArgs
from koordlet.api.encoding import wire

DEFAULTS = {
    "dryRun": False,
    "maxConcurrentReconciles": 1,
    "evictFailedBarePods": False,
    "evictAllBarePods": False,
    "evictLocalStoragePods": False,
    "evictSystemCriticalPods": False,
    "ignorePvcPods": False,
    "priorityThreshold": None,
    "labelSelector": None,
    "namespaces": None,
    "nodeFit": False,
    "nodeSelector": "",
    "skipEvictionGates": [],
    "maxMigratingGlobally": None,
    "maxMigratingPerNode": 2,
    "maxMigratingPerNamespace": None,
    "maxMigratingPerWorkload": None,
    "maxUnavailablePerWorkload": None,
    "skipCheckExpectedReplicas": False,
    "objectLimiters": {"workload": {"duration": "5m0s", "maxMigrating": None, "burst": 1}},
    "defaultJobMode": "ReservationFirst",
    "defaultJobTTL": "5m0s",
    "schedulerNames": ["koord-scheduler"],
    "evictQPS": 10,
    "evictBurst": 1,
    "evictionPolicy": "Eviction",
    "defaultDeleteOptions": None,
    "arbitrationArgs": {"enabled": True, "interval": "500ms"},
}


def read(document: dict[str, Any]) -> tuple[MigrationControllerArgs, list[str]]:
    errors: list[str] = []
    args: MigrationControllerArgs = Reader(errors).struct(document, MigrationControllerArgs, "args")
    return args, errors + args.check("args")


def test_defaults() -> None:
    args, errors = read({})
    assert errors == []
    assert msgspec.to_builtins(args, enc_hook=wire.enc_hook) == DEFAULTS


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"maxConcurrentReconciles": 0}, "args.maxConcurrentReconciles"),
        ({"maxMigratingGlobally": -1}, "args.maxMigratingGlobally"),
        ({"maxMigratingPerNode": -1}, "args.maxMigratingPerNode"),
        ({"maxMigratingPerNamespace": -1}, "args.maxMigratingPerNamespace"),
        ({"maxMigratingPerWorkload": "ten"}, "args.maxMigratingPerWorkload"),
        ({"maxMigratingPerWorkload": -1}, "args.maxMigratingPerWorkload"),
        ({"maxMigratingPerWorkload": True}, "args.maxMigratingPerWorkload"),
        ({"maxUnavailablePerWorkload": "-5%"}, "args.maxUnavailablePerWorkload"),
        ({"objectLimiters": {"node": {"duration": "1m"}}}, "args.objectLimiters"),
        ({"objectLimiters": {"workload": {"duration": "0s"}}}, "args.objectLimiters[workload].duration"),
        ({"objectLimiters": {"workload": {"duration": "1s", "burst": 0}}}, "args.objectLimiters[workload].burst"),
        ({"defaultJobMode": "Now"}, "args.defaultJobMode"),
        ({"defaultJobTTL": "-1s"}, "args.defaultJobTTL"),
        ({"evictQPS": "many"}, "args.evictQPS"),
        ({"evictQPS": 0}, "args.evictQPS"),
        ({"evictBurst": 0}, "args.evictBurst"),
        ({"evictionPolicy": "Kill"}, "args.evictionPolicy"),
        ({"arbitrationArgs": {"interval": "0s"}}, "args.arbitrationArgs.interval"),
        ({"skipEvictionGates": ["PVC", "Everything"]}, "args.skipEvictionGates[1]"),
        ({"namespaces": {"include": ["a"], "exclude": ["b"]}}, "args.namespaces"),
        ({"labelSelector": {"matchLabels": {"a b": "c"}}}, "args.labelSelector"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}, "args.labelSelector"),
        ({"priorityThreshold": {"value": 1, "name": "high"}}, "args.priorityThreshold"),
        ({"nodeSelector": "a in (b"}, "args.nodeSelector"),
        ({"maxMigrating": 3}, "args.maxMigrating"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_arguments_name_their_field(document: dict[str, Any], field: str) -> None:
    _, errors = read(document)
    assert len(errors) == 1
    assert field in errors[0]


def test_all_errors_are_reported_together() -> None:
    _, errors = read({"evictBurst": 0, "evictQPS": 0, "defaultJobMode": "x", "evictionPolicy": "y"})
    assert len(errors) == 4


@pytest.mark.parametrize(
    ("value", "qps"), [(10, 10.0), ("10", 10.0), ("0.5", 0.5), (2.5, 2.5), ("ten", 0.0), (None, 10.0), ("1e9", 0.0)]
)
def test_evictions_per_second(value: object, qps: float) -> None:
    args, _ = read({"evictQPS": value})
    assert args.evictions_per_second == qps


def test_a_map_of_limiters_replaces_the_default_completely() -> None:
    args, errors = read({"objectLimiters": {"namespace": {"duration": "1m", "maxMigrating": 3}}})
    assert errors == []
    assert list(args.object_limiters) == ["namespace"]
    assert list(read({"objectLimiters": {}})[0].object_limiters) == ["workload"]


def test_an_empty_list_of_schedulers_is_the_default() -> None:
    assert read({"schedulerNames": []})[0].scheduler_names == ["koord-scheduler"]
    assert read({"schedulerNames": ["mine"]})[0].scheduler_names == ["mine"]


def test_every_gate_is_accepted() -> None:
    assert read({"skipEvictionGates": list(GATES)})[1] == []
