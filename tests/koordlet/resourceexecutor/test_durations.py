"""Histograms and labels of writes."""

from __future__ import annotations

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.durations import Durations, level
from koordlet.resourceexecutor.settings import Setting

POD = "kubepods/burstable/pod1b2c"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (Setting("cpu.shares", "kubepods"), "kubeqos"),
        (Setting("cpu.shares", "kubepods.slice/kubepods-besteffort.slice"), "kubeqos"),
        (Setting("cpu.shares", POD), "pod"),
        (Setting("cpu.shares", "kubepods.slice/kubepods-pod1b2c.slice"), "pod"),
        (Setting("cpu.shares", f"{POD}/{'c' * 64}"), "container"),
        (Setting("cpu.shares", "host-latency-sensitive/nginx"), "hostapp"),
        (Setting("sched_group_identity_enabled"), "node"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.label,
)
def test_level(setting: Setting, expected: str) -> None:
    assert level(setting) == expected


def counted(registries: Registries, family: str, **labels: str) -> float | None:
    return registries.internal.get_sample_value(f"koordlet_{family}_count", labels)


def test_only_owners_that_follow_pods_are_reconcilers() -> None:
    registries = Registries()
    registries.node = "n"
    durations = Durations(registries, ["batchresource"])
    for owner, failed in (("batchresource", False), ("batchresource", True), ("cpusuppress", False), ("nobody", False)):
        durations.observe(Setting("cpu.shares", POD), owner, 0.0, failed=failed)
    updates, reconciled = (
        "resource_update_duration_milliseconds",
        "runtime_hook_reconciler_invoked_duration_milliseconds",
    )
    assert counted(registries, updates, type="cgroup", status="success") == 3
    assert counted(registries, updates, type="cgroup", status="failed") == 1
    labels = {"node": "n", "level": "pod", "resource_type": "cpu.shares"}
    assert counted(registries, reconciled, **labels, status="succeeded") == 1
    assert counted(registries, reconciled, **labels, status="failed") == 1


def test_no_node_label_before_the_node_is_known() -> None:
    registries = Registries()
    durations = Durations(registries, ["batchresource"])
    durations.observe(Setting("cpu.shares", POD), "batchresource", 0.0, failed=False)
    durations.observe(Setting("resctrl.L3", None, "BE"), "resctrl", 0.0, failed=False)
    durations.observe(Setting("sched_group_identity_enabled"), "groupidentity", 0.0, failed=False)
    for kind in ("cgroup", "resctrl-schema", "default"):
        assert counted(registries, "resource_update_duration_milliseconds", type=kind, status="success") == 1
    names = [sample.name for family in registries.internal.collect() for sample in family.samples]
    assert not [name for name in names if name.startswith("koordlet_runtime_hook_reconciler")]
