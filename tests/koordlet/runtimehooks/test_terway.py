"""Terway's two files (spec 03 §4.13): bytes per second from bits or percent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import PodView
from koordlet.resourceexecutor import Executor, Setting
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.terwayfiles import TerwayStore
from koordlet.runtimehooks.hooks.terway import TerwayQoS
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.koordlet.resourceexecutor.conftest import Recorder


def slo(
    ls: dict[str, int] | None = None, be: dict[str, str] | None = None, total: str = "800M", policy: str = "terway-qos"
) -> dict[str, Any]:
    qos = {
        f"{name}Class": {"networkQOS": {"enable": True, **class_qos}}
        for name, class_qos in (("ls", ls), ("be", be))
        if class_qos
    }
    return {
        "resourceQOSStrategy": {**qos, "policies": {"netQOSPolicy": policy}},
        "systemStrategy": {"totalNetworkBandwidth": total},
    }


def decide(policy: dict[str, Any], *pods: PodView, strategy: TerwayQoS | None = None) -> QoSDecision:
    return (strategy or TerwayQoS()).decide(make_view(slo=policy, pods=pods))  # type: ignore[return-value]


def values(decision: QoSDecision) -> dict[str, str]:
    return {update.setting.resource: update.value for update in decision.updates}  # type: ignore[misc]


def test_the_node() -> None:
    ls = {"egressRequest": 50, "egressLimit": 100, "ingressRequest": 10, "ingressLimit": 90}
    be = {"egressRequest": "80M", "egressLimit": "160M", "ingressRequest": "8M", "ingressLimit": "16M"}
    assert values(decide(slo(ls, be)))["terway.global"] == (
        "hw_tx_bps_max 100000000\n"
        "hw_rx_bps_max 100000000\n"
        "offline_l1_tx_bps_min 50000000\n"
        "offline_l1_tx_bps_max 100000000\n"
        "offline_l1_rx_bps_min 10000000\n"
        "offline_l1_rx_bps_max 90000000\n"
        "offline_l2_tx_bps_min 10000000\n"
        "offline_l2_tx_bps_max 20000000\n"
        "offline_l2_rx_bps_min 1000000\n"
        "offline_l2_rx_bps_max 2000000\n"
    )


@pytest.mark.parametrize(
    ("qos", "kube", "prio"),
    [
        ("SYSTEM", "Guaranteed", 0), ("LSE", "Guaranteed", 1), ("LSR", "Guaranteed", 1), ("LS", "Burstable", 1),
        ("BE", "BestEffort", 2), ("", "Guaranteed", 1), ("", "Burstable", 1), ("", "BestEffort", 2),
    ],
)  # fmt: skip
def test_a_pod(qos: str, kube: str, prio: int) -> None:
    limits = {"koordinator.sh/networkQOS": '{"ingressLimit":"8M","egressLimit":"16M"}'}
    pod = make_pod("p", qos=qos, kube=kube, annotations=limits)
    assert json.loads(values(decide(slo(), pod))["terway.pods"]) == {
        "uid-p": {
            "podName": "p", "podNamespace": "default", "podUID": "uid-p", "prio": prio,
            "cgroupDir": f"/sys/fs/cgroup/net_cls/{pod.meta.cgroup_dir}",
            "qosConfig": {"ingressBandwidth": 1_000_000, "egressBandwidth": 2_000_000},
        }
    }  # fmt: skip


def test_an_invalid_bandwidth_keeps_the_old_file() -> None:
    strategy = TerwayQoS()
    before = values(decide(slo(be={"egressLimit": "80M"}), strategy=strategy))["terway.global"]
    decision = decide(slo(be={"egressLimit": "8G"}), strategy=strategy)
    assert values(decision)["terway.global"] == before
    assert "8G is not within" in decision.note


def test_files_exist_only_while_the_policy_is_terway(tmp_path: Path) -> None:
    directory = tmp_path / "terway/qos"
    directory.mkdir(parents=True, mode=0o755)
    (directory / "pod.json").write_text("an earlier boot's")
    files = KernelFiles(None, None, [TerwayStore(directory)])  # type: ignore[arg-type]
    executor = Executor(files, Ledger(None, "boot"), Recorder(), Registries())
    strategy = TerwayQoS()
    for policy, names in (("tc", set()), ("terway-qos", {"global_bps_config", "pod.json"}), ("tc", set())):
        executor.declare("terwayqos", decide(slo(policy=policy), make_pod("p"), strategy=strategy).updates)
        assert executor.apply().problems == {}
        assert {path.name for path in directory.iterdir()} == names


def test_the_directory_is_created_readable(tmp_path: Path) -> None:
    """Koordinator creates it without any permissions."""
    directory = tmp_path / "terway/qos"
    TerwayStore(directory).write(Setting("terway.pods"), "{}")
    assert directory.stat().st_mode & 0o755 == 0o755
