"""Flags, environment and the rule that selects controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.manager.options import CONTROLLERS, NODERESOURCE_PLUGINS, ManagerOptions, WebhookEnv, selected
from control.manager.parts import CONTROLLERS as BUILT
from control.manager.process import changed_without_effect
from koordlet.api.gates import MANAGER, MANAGER_WITHOUT_EFFECT
from koordlet.app.flags import FlagError, read
from koordlet.app.gates import FeatureGates

SELECTIONS = {
    "all others": ("*,-noderesource", set(CONTROLLERS) - {"noderesource"}),
    "name before star": ("noderesource,*", set(CONTROLLERS)),
    "one off, first": ("-nodeslo,*", set(CONTROLLERS) - {"nodeslo"}),
    "star comes first": ("*,-nodeslo", set(CONTROLLERS) - {"nodeslo"}),
    "only these": ("nodemetric,nodeslo", {"nodemetric", "nodeslo"}),
    "the first word counts": ("nodeslo,-nodeslo", {"nodeslo"}),
    "off before on": ("-nodeslo,nodeslo", set()),
    "none": ("-nodeslo", set()),
}


@pytest.mark.parametrize(("items", "enabled"), SELECTIONS.values(), ids=SELECTIONS)
def test_selection(items: str, enabled: set[str]) -> None:
    assert {name for name in CONTROLLERS if selected(name, items.split(","))} == enabled


def test_the_defaults_are_koordinators() -> None:
    options = read(ManagerOptions, [])
    assert options.controllers == list(CONTROLLERS)
    assert options.noderesource_plugins == list(NODERESOURCE_PLUGINS)
    assert (options.metrics_addr, options.health_probe_addr, options.pprof_addr) == (":8080", ":8000", "127.0.0.1:8090")
    assert (options.enable_leader_election, options.leader_election_namespace) == (True, "koordinator-system")
    assert (options.rest_config_qps, options.rest_config_burst) == (30, 50)
    assert (options.config_namespace, options.slo_config_name) == ("koordinator-system", "slo-controller-config")
    assert options.colocation_profile_reconcile_interval == 30
    assert options.binding_admission_exclude_namespaces == "kube-system"
    assert options.resync_seconds is None
    assert list(BUILT) == list(CONTROLLERS)


def test_profiles_are_off_by_default() -> None:
    options = read(ManagerOptions, [])
    assert (options.enable_pprof, options.pprof_addr) == (False, "127.0.0.1:8090")


def test_lists_replace_their_default() -> None:
    assert read(ManagerOptions, ["--controllers=*,-nodeslo"]).controllers == ["*", "-nodeslo"]


@pytest.mark.parametrize("gate", MANAGER_WITHOUT_EFFECT)
def test_a_gate_without_effect_is_named_when_it_is_set(gate: str) -> None:
    gates = FeatureGates(MANAGER)
    assert changed_without_effect(gates) == []
    gates.set({gate: True, "Recommender": True})
    assert changed_without_effect(gates) == [gate]


RESYNCS = {"": None, "0": None, "0s": None, "10m": 600.0, "soon": None}


@pytest.mark.parametrize(("text", "seconds"), RESYNCS.items(), ids=[key or "none" for key in RESYNCS])
def test_sync_period(text: str, seconds: float | None) -> None:
    assert read(ManagerOptions, [f"--sync-period={text}"]).resync_seconds == seconds


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--metrics-addr=8080", "--metrics-addr"),
        ("--leader-elect-resource-lock=endpoints", "must be one of leases"),
        ("--rest-config-qps=fast", "not an integer"),
        ("--recommender-cpu-percentile=95", "95 is not between 0 and 1"),
        ("--recommender-eviction-share=1.5", "--recommender-eviction-share"),
        ("--metric-addr=:1", "did you mean --metrics-addr"),
    ],
)
def test_an_invalid_flag_is_named(flag: str, message: str) -> None:
    with pytest.raises(FlagError, match=message):
        read(ManagerOptions, [flag])


def test_the_environment_has_koordinators_defaults() -> None:
    env = WebhookEnv.read({})
    assert (env.port, env.cert_dir) == (9876, Path("/var/run/koordinator-webhook-certs"))
    assert env.dns_name == "koordinator-webhook-service.koordinator-system.svc"
    assert not env.to_files


WRITERS = {
    "Secret": ({}, False),
    "files requested": ({"WEBHOOK_CERT_WRITER": "fs"}, True),
    "a host": ({"WEBHOOK_HOST": "10.0.0.1"}, True),
    "a host, and a Secret requested": ({"WEBHOOK_HOST": "10.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}, False),
}


@pytest.mark.parametrize(("environ", "files"), WRITERS.values(), ids=WRITERS)
def test_certificate_storage(environ: dict[str, str], files: bool) -> None:
    assert WebhookEnv.read(environ).to_files is files


def test_the_host_of_a_url() -> None:
    assert WebhookEnv.read({"WEBHOOK_HOST": "fd00::1"}).url_host == "[fd00::1]"
    assert WebhookEnv.read({"WEBHOOK_HOST": "hooks.example"}).url_host == "hooks.example"
    assert WebhookEnv.read({"WEBHOOK_HOST": "hooks.example"}).dns_name == "hooks.example"


@pytest.mark.parametrize(
    "environ",
    [
        {"WEBHOOK_PORT": "https"}, {"WEBHOOK_PORT": "70000"}, {"WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS": "Maybe"},
        {"WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS": "31"},
    ],
    ids=["no number", "too high", "no policy", "too long"],
)  # fmt: skip
def test_an_invalid_environment_variable_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(FlagError, match=next(iter(environ))):
        WebhookEnv.read(environ)
