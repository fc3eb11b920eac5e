"""The demo's checks of pods that a profile has made best effort, on stored pods and cgroup files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control.ctl.demo import colocation

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
KEEP = {"node.koordinator.sh/extended-resource-spec": "{}"}


def pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": requests or {}}}
    return {
        "metadata": {"name": "b", "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


BE = {"koordinator.sh/qosClass": "BE"}
CLASS = {"priority": 5000, "priorityClassName": "koord-batch"}


@pytest.mark.parametrize(
    ("allocatable", "ok"),
    [
        (pod(BE, KEEP, {CPU: "500", MEMORY: "64Mi"}, **CLASS), True),
        (pod(BE, {}, {CPU: "500", MEMORY: "64Mi"}, **CLASS), False),
        (pod(BE, KEEP, {"cpu": "500m", "memory": "64Mi"}, **CLASS), False),
        (pod({}, KEEP, {CPU: "500", MEMORY: "64Mi"}, **CLASS), False),
        (pod(BE, KEEP, {CPU: "500", MEMORY: "64Mi"}, priority=0), False),
    ],
)
def test_admitted(allocatable: dict[str, Any], ok: bool) -> None:
    verdict = colocation.admitted(allocatable)
    assert verdict.ok is ok
    assert "b is " in verdict.text


FILES = {
    "v1": {"cpu.shares": "512", "cpu.cfs_quota_us": "100000", "memory.limit_in_bytes": "67108864"},
    "v2": {"cpu.weight": "20", "cpu.max": "100000 100000", "memory.max": "67108864"},
}
LIMITED = pod(BE, KEEP, {CPU: "500", MEMORY: "64Mi"})
LIMITED["spec"]["containers"][0]["resources"]["limits"] = {CPU: "1k", MEMORY: "64Mi"}


def files_of(folder: Path, values: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


@pytest.mark.parametrize("version", FILES)
def test_placed(tmp_path: Path, version: str) -> None:
    running = {**FILES[version], "cgroup.procs": "7"}
    idle = files_of(tmp_path / "kubepods/besteffort/idle", FILES[version])
    assert "it has no process" in colocation.placed(LIMITED, idle, idle).text
    good = files_of(tmp_path / "kubepods/besteffort/podx", FILES[version])
    files_of(good / "container", {"cgroup.procs": "7"})
    assert colocation.placed(LIMITED, good, good).ok
    elsewhere = files_of(tmp_path / "kubepods/burstable/podx", running)
    assert not colocation.placed(LIMITED, elsewhere, elsewhere).ok
    for name in FILES[version]:
        wrong = files_of(tmp_path / f"kubepods/besteffort/{name}", {**running, name: "2"})
        verdict = colocation.placed(LIMITED, wrong, wrong)
        assert not verdict.ok
        assert f"{name} should be {FILES[version][name]}" in verdict.text


@pytest.mark.parametrize(
    ("allocatable", "ok"),
    [
        ({}, False),
        ({CPU: "199", MEMORY: "1Gi"}, False),
        ({CPU: "1k", MEMORY: "1Mi"}, False),
        ({CPU: "200", MEMORY: "64Mi"}, True),
    ],
)
def test_overcommitted(allocatable: dict[str, str], ok: bool) -> None:
    assert colocation.offers_batch_resources({"status": {"allocatable": allocatable}}).ok is ok


def test_the_strategy_keeps_existing_fields() -> None:
    assert json.loads(colocation.strategy('{"enable": true}')) == {"enable": True, "cpuReclaimThresholdPercent": 300}
    assert json.loads(colocation.strategy("")) == {"cpuReclaimThresholdPercent": 300}


def test_the_scheduler_and_node_of_a_pod_are_checked() -> None:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    pod = {
        "metadata": {"name": "report"},
        "spec": {"schedulerName": "koord-scheduler", "nodeName": "n1"},
        "status": {"conditions": conditions},
    }
    assert colocation.scheduled(pod, "n1").ok
    assert not colocation.scheduled(pod, "n2").ok
    assert not colocation.scheduled({**pod, "spec": {"schedulerName": "other", "nodeName": "n1"}}, "n1").ok
