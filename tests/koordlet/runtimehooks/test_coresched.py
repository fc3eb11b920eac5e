"""Core scheduling: groups by class and label (tables of spec 03 §4.9), and kernels without support."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import Setting
from koordlet.resourceexecutor.cookies import Cookies
from koordlet.runtimehooks.hooks.coresched import CoreSched, attach_cookies, class_rules, group_of
from koordlet.system.kernel import Feature
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

COOKIE, IDLE = "core_sched_cookie", "cpu.idle"
DIRS = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
GROUP, POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
EXAMPLE = {
    "lsrClass": {"cpuQOS": {"enable": True, "coreExpeller": True, "schedIdle": 0}},
    "lsClass": {"cpuQOS": {"enable": True, "coreExpeller": True, "schedIdle": 0}},
    "beClass": {"cpuQOS": {"enable": True, "coreExpeller": False, "schedIdle": 1}},
}


def slo(classes: dict[str, Any] | None = None, policy: str | None = "coreSched") -> dict[str, Any]:
    strategy = dict(EXAMPLE if classes is None else classes)
    if policy is not None:
        strategy["policies"] = {"cpuPolicy": policy}
    return {"resourceQOSStrategy": strategy}


def view_of(
    *pods: PodView, classes: dict[str, Any] | None = None, policy: str | None = "coreSched", **fields: Any
) -> NodeView:
    return make_view(pods=pods, qos_dirs=DIRS, slo=slo(classes, policy), **fields)


def decided(*pods: PodView, available: bool = True, **fields: Any) -> dict[Any, Any]:
    decision = CoreSched(Feature(available, "" if available else "no SMT")).decide(view_of(*pods, **fields))
    return {(update.setting.cgroup_dir, update.setting.resource): update.value for update in present(decision).updates}


def group(pod: PodView, classes: dict[str, Any] | None = None) -> str | None:
    return group_of(pod, class_rules(present(view_of(classes=classes).slo.resource_qos_strategy)))


@pytest.mark.parametrize(
    ("qos", "kube", "labels", "expected"),
    [
        ("LS", "Burstable", {}, "-expeller"),
        ("LSR", "Guaranteed", {}, "-expeller"),
        ("LSE", "Guaranteed", {}, "-expeller"),
        ("BE", "BestEffort", {}, ""),
        ("SYSTEM", "Burstable", {}, None),
        ("", "Guaranteed", {}, "-expeller"),
        ("", "Burstable", {}, "-expeller"),
        ("", "BestEffort", {}, ""),
        ("LS", "Burstable", {GROUP: "web"}, "default/web-expeller"),
        ("BE", "BestEffort", {GROUP: "spark"}, "default/spark"),
        ("LS", "Burstable", {GROUP: "web", POLICY: "exclusive"}, "uid-pod-expeller"),
        ("BE", "BestEffort", {POLICY: "exclusive"}, "uid-pod"),
        ("LS", "Burstable", {GROUP: "uid-pod"}, "default/uid-pod-expeller"),  # not the exclusive group of a pod
        ("LS", "Burstable", {GROUP: "web", POLICY: "none"}, None),
        ("LS", "Burstable", {GROUP: "web", POLICY: "odd"}, "default/web-expeller"),
    ],
)
def test_the_group_of_a_pod(qos: str, kube: str, labels: dict[str, str], expected: str | None) -> None:
    assert group(make_pod(qos=qos, kube=kube, labels=labels)) == expected


@pytest.mark.parametrize(
    ("qos", "kube", "expected"),
    [
        ("LSR", "Guaranteed", None),
        ("", "Guaranteed", "-expeller"),
        ("LS", "Burstable", "-expeller"),
        ("BE", "BestEffort", None),
    ],
)
def test_only_ls_is_enabled(qos: str, kube: str, expected: str | None) -> None:
    assert group(make_pod(qos=qos, kube=kube), {"lsClass": {"cpuQOS": {"enable": True}}}) == expected


def test_the_worked_example() -> None:
    """LS expels, BE does not, no labels: two groups; all of best effort is idle."""
    web, job = make_pod("web", qos="LS", containers=2), make_pod("job", qos="BE", kube="BestEffort")
    assert decided(web, job) == {
        ("kubepods/besteffort", IDLE): 1,
        (web.meta.containers[0].cgroup_dir, COOKIE): "group:-expeller",
        (web.meta.containers[1].cgroup_dir, COOKIE): "group:-expeller",
        (job.meta.containers[0].cgroup_dir, COOKIE): "group:",
    }


def test_an_init_container_has_its_pods_cookie_while_it_runs() -> None:
    web = make_pod("web", qos="LS", init="setup")
    assert decided(web)[f"{web.meta.cgroup_dir}/web-setup", COOKIE] == "group:-expeller"


@pytest.mark.parametrize(
    ("classes", "idle"),
    [
        ({}, set()),
        ({"beClass": {"cpuQOS": {"enable": False, "schedIdle": 1}}}, set()),
        ({"beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}}}, {"kubepods/besteffort"}),
        ({"lsClass": {"cpuQOS": {"enable": True, "schedIdle": 1}}}, {"kubepods", "kubepods/burstable"}),
        (
            {"lsrClass": {"cpuQOS": {"enable": True}}, "lsClass": {"cpuQOS": {"enable": True, "schedIdle": 1}}},
            {"kubepods/burstable"},
        ),
    ],
)
def test_which_directories_are_idle(classes: dict[str, Any], idle: set[str]) -> None:
    assert {where for where, file in decided(classes=classes) if file == IDLE} == idle


@pytest.mark.parametrize(
    "off", [{"classes": {}}, {"policy": "groupIdentity"}, {"policy": ""}, {"policy": None}], ids=str
)
def test_a_disabled_policy_has_no_desired_settings(off: dict[str, Any]) -> None:
    assert decided(make_pod(qos="LS"), **off) == {}


def test_without_kernel_support_the_reason_is_reported_and_idle_groups_are_set() -> None:
    pods = (make_pod("web", qos="LS"), make_pod("job", qos="BE", kube="BestEffort"))
    assert decided(*pods, available=False, held={Setting("sched_core"): 0}) == {("kubepods/besteffort", IDLE): 1}
    assert "no SMT" in present(CoreSched(Feature(False, "no SMT")).decide(view_of(*pods))).note


def test_vendor_sysctls_are_set() -> None:
    held = {Setting("sched_core"): 0, Setting("sched_group_identity_enabled"): 1}
    settings = decided(held=held)
    assert (settings[None, "sched_core"], settings[None, "sched_group_identity_enabled"]) == (1, 0)
    assert not any(where is None for where, _ in decided())


def test_finished_pods_are_not_changed() -> None:
    assert COOKIE not in {file for _, file in decided(make_pod(qos="LS", phase="Failed"))}


def test_cookies_are_exported_as_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = make_pod("web", qos="LS")
    place = pod.meta.containers[0].cgroup_dir
    cookies = Cookies(lambda directory: (), Feature(True))
    monkeypatch.setattr(cookies, "groups", lambda: iter([(place, "-expeller", 7), ("of no pod", "", 8)]))
    registries = Registries()
    registries.node = "n"
    attach_cookies(registries, cookies, lambda: [pod.meta])
    rows = [s for f in registries.internal.collect() if "cookie" in f.name for s in f.samples]
    assert [row.name for row in rows] == ["koordlet_container_core_sched_cookie"]
    labels = rows[0].labels
    assert (labels["core_sched_group"], labels["core_sched_cookie"], labels["container_name"]) == (
        "-expeller",
        "7",
        "c0",
    )
