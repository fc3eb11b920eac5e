"""Memory QoS on stock kernels: which file implements which field, and background reclaim of containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import ContainerView, NodeView, PodView
from koordlet.qosmanager.engine.viewbuilder import MEMORY_FILES
from koordlet.qosmanager.strategies.memoryqos import MemoryQOSReconcile
from koordlet.qosmanager.strategies.memoryreclaim import MemoryReclaim
from koordlet.resourceexecutor import Setting
from koordlet.resourceexecutor.actions import ActionOutcome
from tests.koordlet.qosmanager.conftest import make_node, make_pod, make_view
from tests.present import present

MIB, GIB = 1 << 20, 1 << 30
DIRS = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
VENDOR = {"memory.wmark_ratio", "memory.priority", "memory.high", "memory.reclaim"}
STOCK = {"memory.high", "memory.reclaim", "memory.oom.group"}
OLD = {"memory.high", "memory.oom.group"}
V1: set[str] = set()
ON = {name: {"memoryQOS": {"enable": True}} for name in ("lsClass", "beClass")}


def pod_of(
    name: str = "p",
    qos: str = "LS",
    kube: str = "Burstable",
    limit: str = "1000Mi",
    annotation: str = "",
    **fields: Any,
) -> PodView:
    key = "kubernetes.io/batch-memory" if qos == "BE" else "memory"
    resources = {"requests": {key: "512Mi"}, "limits": {key: limit} if limit else {}}
    annotations = {"koordinator.sh/memoryQOS": annotation} if annotation else {}
    spec = {"containers": [{"name": "c0", "resources": resources}]}
    return make_pod(name, qos=qos, kube=kube, spec=spec, annotations=annotations, **fields)


def view_of(*pods: PodView, classes: dict[str, Any] | None = None, **fields: Any) -> NodeView:
    slo = {"resourceQOSStrategy": ON if classes is None else classes}
    return make_view(pods=pods, qos_dirs=DIRS, node=make_node(memory="4Gi"), slo=slo, **fields)


def files_of(files: set[str] | frozenset[str]) -> frozenset[str]:
    return frozenset(files) & frozenset(MEMORY_FILES)


def decided(pod: PodView, files: set[str], classes: Any = None) -> dict[str, int]:
    by_directory: dict[str, Any] = {}
    for update in present(
        MemoryQOSReconcile().decide(view_of(pod, classes=classes, memory_files=files_of(files)))
    ).updates:
        assert update.setting.cgroup_dir is not None
        by_directory.setdefault(update.setting.cgroup_dir, {})[update.setting.resource] = update.value
    result: dict[str, int] = by_directory[pod.meta.containers[0].cgroup_dir]
    return result


@pytest.mark.parametrize(
    ("qos", "kube", "files", "expected"),
    [
        ("BE", "BestEffort", VENDOR, {"memory.wmark_ratio": 95, "memory.high": (1 << 63) - 1}),
        ("BE", "BestEffort", STOCK, {"memory.high": (1 << 63) - 1}),
        ("BE", "BestEffort", OLD, {"memory.high": 950 * MIB}),
        ("LS", "Burstable", OLD, {"memory.high": (1 << 63) - 1}),
        ("BE", "BestEffort", V1, {"memory.high": (1 << 63) - 1}),
    ],
    ids=["vendor", "reclaim", "high-for-best-effort", "not-for-services", "v1"],
)
def test_watermarks_use_the_kernels_best_file(qos: str, kube: str, files: set[str], expected: dict[str, int]) -> None:
    settings = decided(pod_of(qos=qos, kube=kube), files)
    assert {file: settings.get(file) for file in expected} == expected
    if files is not VENDOR:
        assert not [file for file in settings if "wmark" in file or "priority" in file]


@pytest.mark.parametrize(
    ("annotation", "low"),
    [
        ('{"policy":"auto","priorityEnable":1,"priority":12}', 512 * MIB),
        ('{"policy":"auto","priorityEnable":1,"priority":3}', 128 * MIB),
        ('{"policy":"auto","priorityEnable":1,"priority":3,"lowLimitPercent":50}', 256 * MIB),
        ('{"policy":"auto","priorityEnable":1,"priority":99}', 512 * MIB),
        ('{"policy":"auto","priorityEnable":0,"priority":12}', 0),
        ('{"policy":"auto","priorityEnable":1}', 0),
    ],
    ids=["highest", "a-quarter", "the-configured-low-is-larger", "clamped", "off", "lowest"],
)
def test_an_oom_priority_becomes_protection(annotation: str, low: int) -> None:
    pod = pod_of(annotation=annotation)
    assert decided(pod, STOCK)["memory.low"] == low
    directories = {
        u.setting.cgroup_dir: u.value
        for u in present(MemoryQOSReconcile().decide(view_of(pod, memory_files=files_of(STOCK)))).updates
        if u.setting.resource == "memory.low"
    }
    assert set(directories.values()) == {low}, "parents protect the sum of their children"
    vendor = decided(pod, VENDOR)
    assert vendor["memory.low"] == (low if "lowLimit" in annotation else 0)


def stock_view(*pods: PodView, **fields: Any) -> NodeView:
    return view_of(*pods, memory_files=files_of(STOCK), **fields)


class Stage:
    def __init__(self, pod: PodView, files: set[str] | frozenset[str] = frozenset(STOCK)) -> None:
        self.acts, self.pod, self.now, self.files = MemoryReclaim(), pod, 1000.0, files_of(files)
        self.used, self.stalled, self.reads = 990 * MIB, 0.0, 0

    def read(self, directory: str) -> tuple[int, float]:
        self.reads += 1
        return self.used, self.stalled

    def round(self, **fields: Any) -> QoSDecision:
        self.now += 1.0
        (container,) = self.pod.meta.containers
        views = (ContainerView(container, None, None, fields.pop("charged", self.used)),)
        pod = replace(self.pod, containers=views)
        fields = {"memory_now": self.read, "memory_files": self.files, **fields}
        return self.acts.decide(view_of(pod, now=self.now, **fields))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("files", "note"),
    [(VENDOR, "watermarks of its own"), (OLD, "no memory.reclaim"), (V1, "no memory.reclaim")],
    ids=["vendor", "before-5.19", "v1"],
)
def test_no_reclaim_with_kernel_watermarks_or_without_memory_reclaim(files: set[str], note: str) -> None:
    stage = Stage(pod_of(), files)
    assert note in stage.round().note and stage.reads == 0


def test_a_container_above_its_mark_is_reclaimed_in_small_steps() -> None:
    stage = Stage(pod_of())
    assert [stage.round().actions for _ in range(2)] == [(), ()], "two readings come first"
    (action,) = stage.round().actions
    assert action.setting == Setting("memory.reclaim", stage.pod.meta.containers[0].cgroup_dir)
    assert action.about is not None
    assert MIB <= action.value <= 8 * MIB and action.about.name == "p"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("pod", "fields"),
    [
        (pod_of(), {"charged": 500 * MIB}),
        (pod_of(), {"charged": None}),
        (pod_of(limit=""), {}),
        (pod_of(phase="Succeeded"), {}),
        (pod_of(annotation='{"policy":"none"}'), {}),
        (pod_of(), {"classes": {}}),
    ],
    ids=["far-below", "not-measured", "no-limit", "ended", "policy-none", "class-off"],
)
def test_containers_without_watermarks_are_not_read(pod: PodView, fields: dict[str, Any]) -> None:
    stage = Stage(pod)
    assert all(stage.round(**fields).actions == () for _ in range(4))
    assert stage.reads == 0


def test_no_reclaim_from_a_removed_or_stalling_container() -> None:
    stage = Stage(pod_of())
    for _ in range(3):
        stage.round()
    assert stage.round(memory_now=lambda directory: None).actions == ()
    stage.stalled += 0.5
    assert stage.round().actions == ()


def test_without_psi_nothing_is_reclaimed_and_the_note_has_the_reason() -> None:
    stage = Stage(pod_of())
    decisions = [stage.round(memory_now=lambda directory: (990 * MIB, None)) for _ in range(4)]
    assert not any(decision.actions for decision in decisions) and "PSI" in decisions[-1].note


def test_a_partial_reclaim_causes_a_pause_and_a_late_one_does_not() -> None:
    stage = Stage(pod_of())
    for _ in range(3):
        actions = stage.round().actions
    setting = actions[0].setting
    stage.acts.acted(stage.now, {setting: ActionOutcome.LATER})
    assert stage.round().actions
    stage.acts.acted(stage.now, {setting: ActionOutcome.PARTLY})
    assert [bool(stage.round().actions) for _ in range(3)] == [False, True, True]
    stage.acts.acted(stage.now, {Setting("memory.reclaim", "unknown"): ActionOutcome.DONE})


def test_all_containers_together_are_bounded() -> None:
    pods = [pod_of(f"p{n}", limit="20Gi") for n in range(40)]
    acts, total = MemoryReclaim(), []
    for second in range(4):
        views = [
            replace(pod, containers=(ContainerView(pod.meta.containers[0], None, None, 20 * GIB),)) for pod in pods
        ]
        decision = acts.decide(stock_view(*views, now=1000.0 + second, memory_now=lambda directory: (20 * GIB, 0.0)))
        total.append(sum(int(action.value) for action in present(decision).actions))
    assert total == [0, 0, 64 * MIB, 64 * MIB]
