"""Group identity: the table of spec 03 §4.5 on kernels that support it, and its equivalent on stock kernels."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.qosmanager.engine.view import HostAppView, PodView
from koordlet.resourceexecutor import Setting
from koordlet.runtimehooks.hooks.groupidentity import GroupIdentity
from koordlet.runtimehooks.stages import running_containers
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

DIRS = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
ALL_ON = {name: {"cpuQOS": {"enable": True}} for name in ("lsrClass", "lsClass", "beClass")}
PODS = {
    ("LSE", "Guaranteed"): 2,
    ("LSR", "Guaranteed"): 2,
    ("LS", "Burstable"): 2,
    ("BE", "BestEffort"): -1,
    ("", "Guaranteed"): 2,
    ("", "Burstable"): 2,
    ("", "BestEffort"): -1,
    ("SYSTEM", "Burstable"): 2,
    ("BE", "Burstable"): -1,
}


def decided(
    *pods: PodView,
    classes: dict[str, Any] | None = None,
    kernel: tuple[str, ...] = ("cpu.bvt_warp_ns", "cpu.idle"),
    policy: str | None = None,
    held: dict[Setting, int] | None = None,
    **fields: Any,
) -> dict[Any, int]:
    strategy = dict(ALL_ON if classes is None else classes)
    if policy is not None:
        strategy["policies"] = {"cpuPolicy": policy}
    view = make_view(pods=pods, qos_dirs=DIRS, slo={"resourceQOSStrategy": strategy}, held=held or {}, **fields)
    decision = GroupIdentity(lambda resource, directory: resource in kernel).decide(view)
    return {(update.setting.cgroup_dir, update.setting.resource): update.value for update in present(decision).updates}  # type: ignore[misc]


@pytest.mark.parametrize(("qos", "kube", "value"), [(*name, value) for name, value in PODS.items()])
def test_identities_of_pods(qos: str, kube: str, value: int) -> None:
    pod = make_pod(qos=qos, kube=kube)
    assert decided(pod)[pod.meta.cgroup_dir, "cpu.bvt_warp_ns"] == value


@pytest.mark.parametrize(("qos", "kube", "value"), [(*name, value) for name, value in PODS.items()])
def test_running_containers_have_the_identity_of_their_pod(qos: str, kube: str, value: int) -> None:
    pod = make_pod(qos=qos, kube=kube, containers=2)
    directories = [directory for _, directory in running_containers(pod)]
    assert len(directories) == 2
    assert [decided(pod)[directory, "cpu.bvt_warp_ns"] for directory in directories] == [value, value]


def test_an_identity_in_an_annotation_holds_for_containers_too() -> None:
    pod = make_pod(qos="LS", annotations={"koordinator.sh/cpuQOS": '{"enable":true,"groupIdentity":1}'})
    ((_, directory),) = running_containers(pod)
    assert decided(pod)[directory, "cpu.bvt_warp_ns"] == 1


def test_no_container_loses_its_weight_on_a_stock_kernel() -> None:
    pods = (make_pod("in", qos="BE", kube="BestEffort"), make_pod("out", qos="BE", kube="Burstable"))
    directories = {directory for pod in pods for _, directory in running_containers(pod)}
    for kernel in (("cpu.idle",), ()):
        assert not directories & {directory for directory, _ in decided(*pods, kernel=kernel)}


def test_identities_of_class_directories() -> None:
    assert decided() == {("kubepods/burstable", "cpu.bvt_warp_ns"): 2, ("kubepods/besteffort", "cpu.bvt_warp_ns"): -1}


@pytest.mark.parametrize(
    "off", [{"classes": {}}, {"policy": "coreSched"}], ids=["no class enabled", "policy coreSched"]
)
def test_a_disabled_policy_has_no_desired_settings(off: dict[str, Any]) -> None:
    assert decided(make_pod(qos="BE", kube="BestEffort"), **off) == {}


def test_identity_of_a_single_class() -> None:
    pods = (make_pod("g", kube="Guaranteed"), make_pod("b", qos="BE", kube="BestEffort"))
    settings = decided(*pods, classes={"lsClass": {"cpuQOS": {"enable": True}}})
    assert set(settings.values()) == {2}
    assert (pods[0].meta.cgroup_dir, "cpu.bvt_warp_ns") in settings, "Guaranteed takes LS's where LSR is off"


@pytest.mark.parametrize(
    ("qos", "annotation", "value"),
    [
        ("LS", '{"enable":true,"groupIdentity":1}', 1),
        ("LS", '{"enable":true}', 2),
        ("LS", '{"enable":false}', None),
        ("LS", '{"groupIdentity":1}', None),
        ("LS", '{"enable":true,"groupIdentity":3}', 2),
        ("LS", "{", 2),
        ("LSR", '{"enable":false}', 2),
    ],
)
def test_an_annotation_overrides_the_identity_of_an_ls_pod(qos: str, annotation: str, value: int | None) -> None:
    pod = make_pod(qos=qos, annotations={"koordinator.sh/cpuQOS": annotation})
    assert decided(pod).get((pod.meta.cgroup_dir, "cpu.bvt_warp_ns")) == value


def test_host_applications() -> None:
    apps = (
        HostAppView("nginx", "LS", False, "host-latency-sensitive/nginx"),
        HostAppView("yarn", "BE", False, "host-best-effort/yarn"),
        HostAppView("odd", "", False, "odd"),
    )
    settings = decided(host_apps=apps)
    assert settings["host-latency-sensitive/nginx", "cpu.bvt_warp_ns"] == 2
    assert settings["host-best-effort/yarn", "cpu.bvt_warp_ns"] == -1
    assert ("odd", "cpu.bvt_warp_ns") not in settings


def test_a_stock_kernel_makes_best_effort_idle() -> None:
    inside, outside = make_pod("in", qos="BE", kube="BestEffort"), make_pod("out", qos="BE", kube="Burstable")
    settings = decided(inside, outside, make_pod("web", qos="LS"), kernel=("cpu.idle",))
    assert settings == {("kubepods/besteffort", "cpu.idle"): 1, (outside.meta.cgroup_dir, "cpu.idle"): 1}


def test_a_kernel_without_either_uses_the_minimum_weight() -> None:
    assert decided(kernel=()) == {("kubepods/besteffort", "cpu.shares"): 2}


def test_the_vendor_sysctl_is_set_after_core_scheduling_is_off() -> None:
    held = {Setting("sched_core"): 1, Setting("sched_group_identity_enabled"): 0}
    settings = decided(held=held)
    assert (settings[None, "sched_core"], settings[None, "sched_group_identity_enabled"]) == (0, 1)
    assert not any(where is None for where, _ in decided(held=held, kernel=("cpu.idle",)))


def test_finished_pods_are_not_changed() -> None:
    pod = make_pod(qos="LS", phase="Succeeded")
    assert (pod.meta.cgroup_dir, "cpu.bvt_warp_ns") not in decided(pod)
