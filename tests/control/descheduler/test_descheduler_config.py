"""DeschedulerConfiguration: defaults, merging of plugin sets, strictness, every error at once (spec 07 §2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
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
from control.descheduler.plugins.registry import PLUGINS
from control.descheduler.process.options import DeschedulerOptions
from control.descheduler.process.process import write_configuration
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.app.flags import read

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
    configuration = settings.configuration
    assert (configuration.leader_election.resource_name, configuration.leader_election.resource_namespace) == (
        "koord-descheduler",
        "koordinator-system",
    )
    connection = configuration.client_connection
    assert (connection.qps, connection.burst) == (50, 100)
    assert connection.accept_content_types == "application/vnd.kubernetes.protobuf,application/json"
    assert configuration.descheduling_interval.seconds == 0
    assert configuration.enable_profiling
    assert configuration.enable_contention_profiling
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
    return {name: argument.number for name, argument in args.items() if isinstance(argument, ToyArgs)}


REFERENCE = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
leaderElection: {resourceLock: leases, resourceName: koord-descheduler, resourceNamespace: koordinator-system}
deschedulingInterval: 120s
dryRun: false
profiles:
- name: koord-descheduler
  plugins:
    deschedule: {disabled: [{name: "*"}]}
    balance:    {enabled:  [{name: LowNodeLoad}]}
    evict:      {disabled: [{name: "*"}], enabled: [{name: MigrationController}]}
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      defaultJobMode: ReservationFirst
      evictQPS: "10"
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces: {exclude: [kube-system, koordinator-system]}
      lowThresholds:  {cpu: 45, memory: 55}
      highThresholds: {cpu: 75, memory: 80}
"""
"""Spec 07 §2.4."""


def test_the_reference_configuration_is_accepted_and_written_with_all_defaults(tmp_path: Path) -> None:
    path, written = tmp_path / "config.yaml", tmp_path / "written.yaml"
    path.write_text(REFERENCE)
    options = read(DeschedulerOptions, [f"--config={path}", f"--write-config-to={written}", "--port=1", "--address=::"])
    write_configuration(options)
    (profile,) = load(written.read_text(), PLUGINS).profiles
    assert profile == load(REFERENCE, PLUGINS).profiles[0]
    assert dict(profile.enabled) == {
        "deschedule": (),
        "balance": ("LowNodeLoad",),
        "evict": ("MigrationController",),
        "filter": ("MigrationController",),
    }
    document = yaml.safe_load(written.read_text())
    assert document["healthzBindAddress"] == "0.0.0.0:10251"  # --address and --port count without a file only
    args = {entry["name"]: entry["args"] for entry in document["profiles"][0]["pluginConfig"]}
    assert args["LowNodeLoad"]["anomalyCondition"] == {
        "timeout": "1m0s",
        "consecutiveAbnormalities": 5,
        "consecutiveNormalities": 3,
    }
    assert (args["MigrationController"]["evictQPS"], args["MigrationController"]["defaultJobTTL"]) == ("10", "5m0s")
    write_configuration(read(DeschedulerOptions, [f"--write-config-to={written}", "--port=1", "--address=::1"]))
    assert yaml.safe_load(written.read_text())["metricsBindAddress"] == "[::1]:1"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    options = read(DeschedulerOptions, [f"--write-config-to={tmp_path}/missing/file"])
    with pytest.raises(ConfigurationError, match=r"cannot write .*missing/file: No such file or directory"):
        write_configuration(options)


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
