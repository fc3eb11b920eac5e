"""koord-scheduler's command line (spec 05 §1.1, §5.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.component.errors import ConfigurationError
from control.scheduler.process.kubernetesgates import split_gates
from control.scheduler.process.options import SchedulerOptions, enabled
from control.scheduler.process.process import read_settings
from koordlet.api.gates import SCHEDULER
from koordlet.app.flags import FlagError, read, unused
from koordlet.app.gates import FeatureGates, GateError


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port=65536"], "--port: 65536 must be between 0 and 65535"),
        (["--address=here"], '--address: "here" is not an IP address'),
        (["--leader-elect=perhaps"], 'invalid argument "perhaps" for --leader-elect'),
        (["file.yaml"], 'unexpected argument "file.yaml"'),
        (["--no-such"], "unknown flag: --no-such"),
    ],
)
def test_mistakes(args: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        read(SchedulerOptions, args)


def test_defaults_and_short_forms() -> None:
    options = read(SchedulerOptions, [])
    assert (options.port, options.address, options.secure_port) == (10251, "0.0.0.0", 10259)
    assert (options.scheduling_timeout, options.scheduler_monitor_period) == (30, 10)
    assert options.pod_max_in_unschedulable_pods_duration == 300
    short = read(SchedulerOptions, ["-s=20", "-f", "-d"])
    assert (short.debug_scores, short.debug_filters, short.debug_diagnosis) == (20, True, True)


@pytest.mark.parametrize(
    ("args", "expected"),
    [([], None), (["--leader-elect"], True), (["--leader-elect=TRUE"], True), (["--leader-elect=0", "--v=1"], False)],
)
def test_leader_election_is_switched_like_in_go(args: list[str], expected: bool | None) -> None:
    assert read(SchedulerOptions, args).leader_elect is expected


def test_the_shipped_deployments_flags_are_accepted() -> None:
    read(
        SchedulerOptions,
        ["--port=10251", "--authentication-skip-lookup=true", "--v=4", "--feature-gates=", "--config=x"],
    )


def test_flags_without_effect_are_named() -> None:
    args = ["--tls-sni-cert-key=a,b", "--disable-http2-serving", "--log-flush-frequency=5s", "--emulated-version=1.34"]
    assert unused(read(SchedulerOptions, args)) == ["tls-sni-cert-key", "emulated-version"]


def test_kubernetes_own_gates_do_not_stop_the_process() -> None:
    gates = read(SchedulerOptions, ["--feature-gates=kube:SyncBarrier=true,kube:NodeSwap=true,AllAlpha=false"])
    own, foreign = split_gates(gates.feature_gates)
    assert (own, foreign) == ({"SyncBarrier": True, "AllAlpha": False}, ["NodeSwap"])
    known = FeatureGates(SCHEDULER)
    known.set(own)
    assert known.enabled("SyncBarrier")
    with pytest.raises(GateError, match="SyncBarier"):
        known.set(split_gates({"kube:SyncBarier": True})[0])


@pytest.mark.parametrize(
    ("items", "name", "expected"),
    [
        (["*"], "A", True),
        (["*", "-A"], "A", False),
        (["-A", "*"], "B", True),
        (["A"], "B", False),
        (["A", "-A"], "A", True),
        (["-A", "A"], "A", False),
    ],
)
def test_controllers_are_chosen_by_the_first_match(items: list[str], name: str, expected: bool) -> None:
    assert enabled(name, items) is expected


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "leaderElection: {resourceName: a, leaseDuration: 1m}\nclientConnection: {qps: 7, kubeconfig: x}\n"
    )
    flags = ["--leader-elect=false", "--leader-elect-renew-deadline=5s", "--kube-api-burst=3", "--kubeconfig=y"]
    configuration = read_settings(read(SchedulerOptions, [f"--config={path}", *flags])).configuration
    lease, connection = configuration.leader_election, configuration.client_connection
    assert (lease.leader_elect, lease.resource_name, str(lease.lease_duration)) == (False, "a", "1m0s")
    assert str(lease.renew_deadline) == "5s"
    assert (connection.qps, connection.burst, connection.kubeconfig) == (7, 3, "y")


@pytest.mark.parametrize("flag", ["--config=/does/not/exist", "--leader-elect-retry-period=soon"])
def test_unusable_options_are_rejected(flag: str) -> None:
    with pytest.raises(ConfigurationError):
        read_settings(read(SchedulerOptions, [flag]))
