"""Block I/O by class and pod (spec 03 §3.6) as tables; the disk of a block."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.strategies.blkio import BlkIO
from koordlet.resourceexecutor.blockio import BFQ_WEIGHT, MODEL, QOS, WEIGHT
from koordlet.system.devices.storage import LocalStorage
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

BE = "kubepods/besteffort"
READ_IOPS, READ_BPS = "blkio.throttle.read_iops_device", "blkio.throttle.read_bps_device"
WRITE_IOPS, WRITE_BPS = "blkio.throttle.write_iops_device", "blkio.throttle.write_bps_device"
MOUNT = "/var/lib/kubelet/pods/uid-{}/volumes/kubernetes.io~csi/{}/mount"
STORAGE = LocalStorage(
    disk_numbers={"/dev/vda": "253:0", "/dev/vdb": "253:16"},
    partition_disk={"/dev/vda1": "/dev/vda"},
    vg_disk={"pool": "/dev/vdb"},
    lv_vg={"/dev/mapper/pool-data": "pool"},
    mount_source={
        MOUNT.format("p", "pv-1"): "/dev/mapper/pool-data",
        MOUNT.format("p", "scratch"): "/dev/vda1",
    },
)
CLAIMS = {("default", "data"): "pv-1"}.get


def block(name: str = "/dev/vda", kind: str = "device", **config: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "ioCfg": config}


def be(*blocks: dict[str, Any], enable: bool = True) -> dict[str, Any]:
    return {"beClass": {"blkioQOS": {"enable": enable, "blocks": list(blocks)}}}


def root(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": list(blocks)}}}


def pod(*blocks: dict[str, Any], text: str | None = None, qos: str = "BE", **fields: Any) -> PodView:
    annotation = json.dumps({"blocks": list(blocks)}) if text is None else text
    return make_pod("p", qos=qos, kube="BestEffort", annotations={"koordinator.sh/blkioQOS": annotation}, **fields)


def decide(
    qos: dict[str, Any],
    *pods: PodView,
    has: tuple[str, ...] = (WEIGHT, QOS),
    storage: LocalStorage | None = STORAGE,
    **fields: Any,
) -> QoSDecision | None:
    strategy = BlkIO(lambda: storage, lambda file, directory: file in has, claims=lambda *key: CLAIMS(key), **fields)
    return strategy.decide(make_view(slo={"resourceQOSStrategy": qos}, pods=pods))


def values(decision: QoSDecision) -> dict[tuple[str, str], dict[str, str]]:
    by_directory: dict[tuple[str, str], dict[str, str]] = {}
    for update in decision.updates:
        key = (update.setting.cgroup_dir or "/", update.setting.device)
        by_directory.setdefault(key, {})[update.setting.resource] = update.value  # type: ignore[assignment]
    return by_directory


def test_all_fields_of_best_effort_are_set() -> None:
    decision = decide(be(block(readIOPS=1, readBPS=2, writeIOPS=3, writeBPS=4, ioWeightPercent=5)))
    assert [(update.setting.resource, update.value) for update in present(decision).updates] == [
        (READ_IOPS, "1"), (READ_BPS, "2"), (WRITE_IOPS, "3"), (WRITE_BPS, "4"), (WEIGHT, "5"),
    ]  # fmt: skip
    assert {(update.setting.cgroup_dir, update.setting.device) for update in present(decision).updates} == {
        (BE, "253:0")
    }


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("/dev/vda", "device", "253:0"),
        ("/dev/vda1", "device", "253:0"),
        ("/dev/mapper/pool-data", "device", "253:16"),
        ("pool", "volumegroup", "253:16"),
    ],
)
def test_blocks_of_a_class_resolve_to_disks(name: str, kind: str, number: str) -> None:
    assert values(present(decide(be(block(name, kind, readBPS=7))))) == {(BE, number): {READ_BPS: "7"}}


def test_unset_fields_are_not_declared_and_0_means_no_limit() -> None:
    assert values(present(decide(be(block())))) == {}
    assert values(present(decide(be(block(readIOPS=0))))) == {(BE, "253:0"): {READ_IOPS: "0"}}


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("/dev/none", "device", "no single disk"),
        ("none", "volumegroup", "no single disk"),
        ("data", "podvolume", "only pods"),
        ("/dev/vda", "tape", "unknown type"),
    ],
)
def test_an_unresolvable_block_leaves_its_class_without_settings(name: str, kind: str, why: str) -> None:
    decision = decide(be(block(), block(name, kind)), pod(block("/dev/vdb", readBPS=7)))
    assert {directory for directory, _ in values(present(decision))} == {"kubepods/besteffort/poduid-p"}
    assert decision is not None
    assert why in decision.note


@pytest.mark.parametrize(
    ("volume", "number"),
    [
        ({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, "253:16"),
        ({"name": "scratch", "csi": {"driver": "d"}}, "253:0"),
    ],
)
def test_volumes_of_a_pod_resolve_to_disks(volume: dict[str, Any], number: str) -> None:
    settings = values(
        present(decide({}, pod(block(volume["name"], "podvolume", writeBPS=9), spec={"volumes": [volume]})))
    )
    assert settings == {("kubepods/besteffort/poduid-p", number): {WRITE_BPS: "9"}}


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ({"name": "v", "persistentVolumeClaim": {"claimName": "other"}}, "'other' is not known yet"),
        ({"name": "w"}, "no such volume"),
        ({"name": "v", "emptyDir": {}}, "neither a claim"),
        ({"name": "v", "csi": {"driver": "d"}}, "no single disk"),
    ],
)
def test_unresolvable_volumes_give_no_settings_and_a_note(volume: dict[str, Any], why: str) -> None:
    decision = decide({}, pod(block("v", "podvolume"), spec={"volumes": [volume]}))
    assert decision is not None
    assert decision.updates == ()
    assert why in decision.note


@pytest.mark.parametrize(
    "pod_without_settings",
    [
        pytest.param(pod(text=""), id="cleared"),
        pytest.param(pod(text="{"), id="malformed"),
        pytest.param(pod(block(), qos=""), id="no class"),
        pytest.param(pod(block(), phase="Pending"), id="not running"),
        pytest.param(make_pod("p", qos="BE"), id="no annotation"),
    ],
)
def test_pods_without_settings(pod_without_settings: PodView) -> None:
    assert present(decide({}, pod_without_settings)).updates == ()


def test_disabled_classes_and_services_get_no_settings() -> None:
    assert present(decide(be(block(), enable=False))).updates == ()
    services = {f"{name}Class": be(block())["beClass"] for name in ("lsr", "ls")}
    decision = decide(services)
    assert decision is not None
    assert decision.updates == ()
    assert decision.note == "LSR: block I/O is for BE and the root only; LS: block I/O is for BE and the root only"


@pytest.mark.parametrize(
    ("config", "qos", "model"),
    [
        ({}, "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000", "ctrl=auto"),
        (
            {"readLatency": 1, "readLatencyPercent": 2, "writeLatency": 3, "writeLatencyPercent": 4},
            "enable=1 ctrl=user rpct=2 rlat=1 wpct=4 wlat=3",
            "ctrl=auto",
        ),
        (
            {"enableUserModel": True, "modelReadBPS": 1, "modelReadSeqIOPS": 2, "modelReadRandIOPS": 3,
             "modelWriteBPS": 4, "modelWriteSeqIOPS": 5, "modelWriteRandIOPS": 6},
            "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000",
            "ctrl=user rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6",
        ),
    ],
)  # fmt: skip
def test_the_root_gets_the_cost_model(config: dict[str, Any], qos: str, model: str) -> None:
    assert values(present(decide(root(block(**config))))) == {("/", "253:0"): {QOS: qos, MODEL: model}}


def test_an_incomplete_model_or_a_kernel_without_one_is_noted() -> None:
    holes = decide(root(block(enableUserModel=True, modelReadBPS=1)))
    assert holes is not None
    assert "lacks modelReadSeqIOPS, modelReadRandIOPS, modelWriteBPS" in holes.note
    decision = decide(root(block()), has=())
    assert decision is not None
    assert decision.updates == ()
    assert "no I/O cost controller" in decision.note


@pytest.mark.parametrize(("has", "file"), [((WEIGHT, BFQ_WEIGHT), WEIGHT), ((BFQ_WEIGHT,), BFQ_WEIGHT), ((), None)])
def test_weights_use_the_kernels_file(has: tuple[str, ...], file: str | None) -> None:
    decision = decide(be(block(ioWeightPercent=50)), has=has)
    weights = {k: v for k, v in values(present(decision)).get((BE, "253:0"), {}).items() if "throttle" not in k}
    assert weights == ({} if file is None else {file: "50"})
    assert decision is not None
    assert ("no weights" in decision.note) == (file is None)


def test_without_inheritance_containers_get_limits_and_the_pods_own_win() -> None:
    mine, other = pod(block(readBPS=5)), make_pod("q", qos="BE", kube="BestEffort", containers=2)
    settings = values(present(decide(be(block(readBPS=9), block("/dev/vdb", readBPS=8)), mine, other, flat=True)))
    read = {(directory.removeprefix(BE), device): row[READ_BPS] for (directory, device), row in settings.items()}
    assert read == {
        ("", "253:0"): "9", ("", "253:16"): "8",
        ("/poduid-p", "253:0"): "5", ("/poduid-p/p-c0", "253:0"): "5", ("/poduid-p/p-c0", "253:16"): "8",
        ("/poduid-q/q-c0", "253:0"): "9", ("/poduid-q/q-c0", "253:16"): "8",
        ("/poduid-q/q-c1", "253:0"): "9", ("/poduid-q/q-c1", "253:16"): "8",
    }  # fmt: skip


def test_no_decision_before_the_disks_are_known() -> None:
    assert decide(be(block()), storage=None) is None
