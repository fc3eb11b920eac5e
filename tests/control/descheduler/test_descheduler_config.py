"""DeschedulerConfiguration: defaults, merging of plugin sets, strictness, every error at once (spec 07 §2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from control.component.errors import ConfigurationError, invalid
from control.descheduler.config.addresses import completed_address
from control.descheduler.config.load import DeschedulerSettings, load, shown
from control.descheduler.framework.handle import PluginHandle
from control.descheduler.framework.plugin import (
    BalancePlugin,
    EvictionFilterPlugin,
    EvictOptions,
    EvictPlugin,
    PluginArgs,
)
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"


class ToyArgs(PluginArgs):
    """Arguments with a rule."""

    number: int = 1

    def check(self, path: str) -> list[str]:
        return [] if self.number > 0 else [invalid(f"{path}.number", self.number, "must be greater than 0")]


class ToyMover(EvictionFilterPlugin, EvictPlugin):
    name = "MigrationController"

    def __init__(self, args: Any, handle: PluginHandle) -> None: ...

    def filter(self, pod: PodRecord) -> str | None:
        return None

    async def evict(self, pod: PodRecord, options: EvictOptions) -> bool:
        return True


class ToyBalance(BalancePlugin):
    name = "ToyBalance"
    args_type = ToyArgs

    def __init__(self, args: Any, handle: PluginHandle) -> None: ...

    async def balance(self, nodes: Sequence[NodeRecord]) -> None: ...


class LenientBalance(ToyBalance):
    name = "LenientBalance"
    strict_args = False


KINDS = {"MigrationController": ToyMover, "Other": ToyMover, "ToyBalance": ToyBalance, "LenientBalance": LenientBalance}


def loaded(body: str) -> DeschedulerSettings:
    return load(HEAD + body, KINDS)


def errors(body: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(body)
    return list(caught.value.errors)


def test_an_empty_file_has_one_profile_that_evicts_by_migration() -> None:
    settings = load("", KINDS)
    (profile,) = settings.profiles
    assert profile.name == "koord-descheduler"
    assert dict(profile.enabled) == {
        "deschedule": (),
        "balance": (),
        "evict": ("MigrationController",),
        "filter": ("MigrationController",),
    }
    assert profile.names() == ["MigrationController"]
    one = settings.configuration
    assert (one.leader_election.resource_name, one.leader_election.resource_namespace) == (
        "koord-descheduler",
        "koordinator-system",
    )
    assert (one.client_connection.qps, one.client_connection.burst) == (50, 100)
    assert one.descheduling_interval.seconds == 0
    assert one.enable_profiling
    assert one.enable_contention_profiling
    assert settings.limits.total is None


@pytest.mark.parametrize(
    ("custom", "evict", "filters"),
    [
        ({}, ("MigrationController",), ("MigrationController",)),
        (
            {"evict": {"disabled": [{"name": "*"}], "enabled": [{"name": "Other"}]}},
            ("Other",),
            ("MigrationController",),
        ),
        (
            {"filter": {"enabled": [{"name": "MigrationController"}, {"name": "Other"}]}},
            ("MigrationController",),
            ("MigrationController", "Other"),
        ),
        (
            {"filter": {"enabled": [{"name": "Other"}, {"name": "MigrationController"}]}},
            ("MigrationController",),
            ("MigrationController", "Other"),
        ),
        ({"filter": {"disabled": [{"name": "MigrationController"}]}}, ("MigrationController",), ()),
    ],
    ids=["defaults", "replaced", "added", "default-keeps-position", "removed"],
)
def test_custom_sets_are_merged_with_the_defaults(
    custom: dict[str, Any], evict: tuple[str, ...], filters: tuple[str, ...]
) -> None:
    (profile,) = loaded(yaml.safe_dump({"profiles": [{"name": "a", "plugins": custom}]})).profiles
    assert (profile.enabled["evict"], profile.enabled["filter"]) == (evict, filters)


def test_arguments_are_defaulted_decoded_and_shown() -> None:
    body = """
deschedulingInterval: 2m
maxNoOfPodsToEvictTotal: 0
profiles:
- name: a
  plugins: {balance: {enabled: [{name: ToyBalance}]}}
  pluginConfig:
  - {name: ToyBalance, args: {apiVersion: descheduler/v1alpha2, kind: ToyBalanceArgs, number: 7}}
- name: b
  plugins: {balance: {enabled: [{name: LenientBalance}]}}
  pluginConfig: [{name: LenientBalance, args: {foreign: 1, number: 3}}]
"""
    settings = loaded(body)
    first, second = settings.profiles
    assert [vars_of(profile.args) for profile in (first, second)] == [{"ToyBalance": 7}, {"LenientBalance": 3}]
    assert settings.limits.total == 0
    document = shown(settings)
    assert document["deschedulingInterval"] == "2m0s"
    assert document["profiles"][0]["plugins"]["balance"] == {
        "enabled": [{"name": "ToyBalance"}],
        "disabled": [{"name": "*"}],
    }
    assert load(yaml.safe_dump(document), KINDS).profiles[0].args["ToyBalance"].number == 7  # type: ignore[attr-defined]


def vars_of(args: Any) -> dict[str, int]:
    return {name: one.number for name, one in args.items() if isinstance(one, ToyArgs)}


def test_all_errors_are_reported_with_their_paths() -> None:
    body = """
deschedulingInterval: -5s
maxNoOfPodsToEvictPerNode: -1
metricsBindAddress: nowhere
unknown: 1
nodeSelector: {matchExpressions: [{key: a, operator: Near}]}
leaderElection: {leaseDuration: 5s, renewDeadline: 10s}
profiles:
- name: a
  plugins: {balance: {enabled: [{name: Missing}, {name: MigrationController}]}, evict: {disabled: [{name: "*"}]}}
  pluginConfig:
  - {name: ToyBalance, args: {number: 0}}
  - {name: ToyBalance, args: {}}
- name: a
  plugins: {evict: {enabled: [{name: Other}]}, balance: {enabled: [{name: ToyBalance}, {name: ToyBalance}]}}
  pluginConfig: [{name: ToyBalance, args: {number: x, kind: OtherArgs}}, {name: Ghost}]
- plugins: {}
"""
    assert errors(body) == [
        'strict decoding error: unknown field "unknown"',
        'leaderElection.leaseDuration: Invalid value: "5s": LeaseDuration must be greater than RenewDeadline',
        'metricsBindAddress: Invalid value: "nowhere": must be host:port with a port of 0 to 65535',
        'deschedulingInterval: Invalid value: "-5s": must not be negative',
        "nodeSelector: Invalid value: matchExpressions[a]: 'Near' is not a valid label selector operator",
        "maxNoOfPodsToEvictPerNode: Invalid value: -1: must be an unsigned integer",
        'profiles[1].name: Duplicate value: "a"',
        "profiles[2].name: Required value",
        'profiles[0].plugins.balance: plugin "Missing" does not exist',
        'profiles[0].plugins.balance: plugin "MigrationController" does not implement BalancePlugin',
        "profiles[0].plugins.evict: no evict plugin is enabled",
        "profiles[0].pluginConfig[0].args.number: Invalid value: 0: must be greater than 0",
        'profiles[0].pluginConfig[1]: Duplicate value: "ToyBalance"',
        'profiles[1].plugins.balance.enabled[1]: Duplicate value: "ToyBalance"',
        "profiles[1].plugins.evict: only one evict plugin can be enabled, but got 2: MigrationController, Other",
        "profiles[1].pluginConfig[0]: args for plugin ToyBalance were not of type ToyBalanceArgs, got OtherArgs",
        'profiles[1].pluginConfig[0].args.number: Invalid value: "x": must be an integer',
        'profiles[1].pluginConfig[1]: plugin "Ghost" does not exist',
    ]


def test_another_kind_and_duplicate_fields_are_errors() -> None:
    with pytest.raises(ConfigurationError, match='no kind "Pod" is registered for version "v1"'):
        load("apiVersion: v1\nkind: Pod\n", KINDS)
    assert errors("dryRun: true\ndryRun: false\n") == ['yaml: line 4: key "dryRun" already set in map']


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0", "0.0.0.0:10251"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        (":81", "0.0.0.0:81"),
        ("::1", "[::1]:10251"),
        ("[::1]:82", "[::1]:82"),
        ("localhost:83", "localhost:83"),
        ("", None),
        ("host", None),
        ("host:", None),
        ("a b:1", None),
        ("h:70000", None),
        ("[x]:1", None),
    ],
)
def test_bind_addresses(text: str, address: str | None) -> None:
    if address is None:
        with pytest.raises(ValueError):
            completed_address(text)
    else:
        assert completed_address(text) == address
