"""CPU sets: the table of spec 03 §4.6 with its worked example, and properties for any pods and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from koordlet.api import names
from koordlet.qosmanager.engine.view import HostAppView, PodView
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.resourceexecutor import Setting
from koordlet.runtimehooks.hooks.cpuset import TOPOLOGY_WAIT_S, CPUSetAllocator, cpus_for, without_quota
from koordlet.runtimehooks.stages import NO_CHANGE, HookAnswer, HookContainer, HookContext, HookError, HookStage
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.qosmanager.conftest import flat, make_pod, make_view
from tests.present import present

CPUS, QUOTA = "cpuset.cpus", "cpu.cfs_quota_us"
RULES = CPURules(
    shared={0: CPUSet.parse("1-5,8-23"), 1: CPUSet.parse("32-47")},
    best_effort={0: CPUSet.parse("0-23"), 1: CPUSet.parse("24-47")},
)
SYSTEM = replace(RULES, system=CPUSet.parse("48-49"))
STATIC = replace(RULES, kubelet_static=True)
ALL = "1-5,8-23,32-47"


def on_node(node: int, cpu: str = "2", resource: str = "cpu", cpuset: str = "") -> str:
    cpuset_part = f'"cpuset":"{cpuset}",' if cpuset else ""
    return f'{{{cpuset_part}"numaNodeResources":[{{"node":{node},"resources":{{"{resource}":"{cpu}"}}}}]}}'


def allocated(status: str, **fields: Any) -> PodView:
    return make_pod(annotations={names.ANNOTATION_RESOURCE_STATUS: status}, **fields)


BATCH = "kubernetes.io/batch-cpu"
TABLE = {
    "1: pinned": (allocated('{"cpuset":"6-7"}', qos="LSR", kube="Guaranteed"), RULES, "6-7"),
    "5: CPUs are not for LS": (allocated('{"cpuset":"6-7"}', qos="LS"), RULES, ALL),
    "8: CPUs are not for unlabelled pods": (allocated('{"cpuset":"6-7"}', kube="Guaranteed"), RULES, ALL),
    "6: CPUs are not for BE": (allocated('{"cpuset":"6-7"}', qos="BE", kube="BestEffort"), RULES, ""),
    "5: malformed counts as absent": (allocated("{", qos="LS"), RULES, ALL),
    "1: pinned and on a NUMA node": (allocated(on_node(1, cpuset="6-7"), qos="LSE", kube="Guaranteed"), RULES, "6-7"),
    "1: before there are rules": (allocated('{"cpuset":"6-7"}', qos="LSR", kube="Guaranteed"), None, "6-7"),
    "-: before there are rules": (make_pod(qos="LS"), None, None),
    "3: LS on node 1": (allocated(on_node(1), qos="LS"), RULES, "32-47"),
    "3: unlabelled on node 0": (allocated(on_node(0)), RULES, "1-5,8-23"),
    "3: an amount for batch counts too": (allocated(on_node(1, "500", BATCH)), RULES, "32-47"),
    "5: memory alone does not select a node": (allocated(on_node(1, "1Gi", "memory"), qos="LS"), RULES, ALL),
    "5: a node without a pool": (allocated(on_node(7), qos="LS"), RULES, ALL),
    "4: SYSTEM": (make_pod(qos="SYSTEM"), SYSTEM, "48-49"),
    "8: SYSTEM without CPUs of its own": (make_pod(qos="SYSTEM"), RULES, ALL),
    "7: SYSTEM beside a static kubelet": (make_pod(qos="SYSTEM"), STATIC, None),
    "5: LS": (make_pod(qos="LS"), RULES, ALL),
    "5: LS beside a static kubelet": (make_pod(qos="LS"), STATIC, ALL),
    "5: LS in the BestEffort directory": (make_pod(qos="LS", kube="BestEffort"), RULES, ALL),
    "6: BE": (make_pod(qos="BE", kube="BestEffort"), RULES, ""),
    "6: BE on a node": (allocated(on_node(1, "500", BATCH), qos="BE", kube="BestEffort"), RULES, ""),
    "6: unlabelled best effort": (make_pod(kube="BestEffort"), STATIC, ""),
    "7: unlabelled beside a static kubelet": (make_pod(kube="Guaranteed"), STATIC, None),
    "7: LSR without pinning, static kubelet": (make_pod(qos="LSR", kube="Guaranteed"), STATIC, None),
    "8: unlabelled": (make_pod(), RULES, ALL),
    "8: LSR without pinning": (make_pod(qos="LSR", kube="Guaranteed"), RULES, ALL),
    "-: no shared CPU is left": (make_pod(qos="LS"), CPURules(shared={0: CPUSet()}), None),
}


@pytest.mark.parametrize(("pod", "rules", "cpus"), TABLE.values(), ids=TABLE)
def test_which_cpus(pod: PodView, rules: CPURules | None, cpus: str | None) -> None:
    allowed = cpus_for(pod, rules)
    assert (None if allowed is None else str(allowed)) == cpus


@pytest.mark.parametrize(("node", "cpus"), [(0, "0-23"), (1, "24-47")])
def test_row_2_best_effort_on_a_node_with_the_cpu_manager_of_best_effort(node: int, cpus: str) -> None:
    pod = allocated(on_node(node, "500", BATCH), qos="BE", kube="BestEffort")
    assert str(cpus_for(pod, RULES, be_cpu_manager=True)) == cpus


@pytest.mark.parametrize(
    ("qos", "cpuset", "expected"),
    [
        ("LSE", "0-1", True), ("LSR", "0-1", True), ("", "0-1", False),
        ("LS", "0-1", False), ("BE", "0-1", False), ("SYSTEM", "0-1", False), ("LSR", "", False),
    ],
)  # fmt: skip
def test_which_pinned_pods_have_no_quota(qos: str, cpuset: str, expected: bool) -> None:
    assert without_quota(make_pod(qos=qos, cpuset=cpuset)) is expected


def decided(
    *pods: PodView, rules: CPURules = RULES, allocator: CPUSetAllocator | None = None, **fields: Any
) -> dict[tuple[str, str], Any]:
    view = make_view(pods=pods, cpu_rules=rules, topology=fields.pop("topology", flat(64)), **fields)
    decision = (allocator or CPUSetAllocator()).decide(view)
    return {(update.setting.cgroup_dir, update.setting.resource): update.value for update in present(decision).updates}  # type: ignore[misc]


def container_of(pod: PodView, number: int = 0) -> str:
    return pod.meta.containers[number].cgroup_dir


def with_limits(cpu: str, **fields: Any) -> PodView:
    spec = {"containers": [{"name": f"c{n}", "resources": {"limits": {"cpu": cpu}}} for n in range(2)]}
    return make_pod(containers=2, spec=spec, **fields)


def test_cpus_are_set_for_containers_and_sandbox_but_not_for_the_pod() -> None:
    pod = make_pod(qos="LS", containers=2)
    sandbox = f"{pod.meta.cgroup_dir}/pause"
    pod = replace(pod, meta=replace(pod.meta, sandbox_dir=sandbox))
    places = [container_of(pod, 0), container_of(pod, 1), sandbox]
    assert decided(pod) == {(place, CPUS): ALL for place in places}


def test_an_init_container_is_set_while_it_runs() -> None:
    web = make_pod("web", qos="LS", init="setup")
    assert decided(web)[f"{web.meta.cgroup_dir}/web-setup", CPUS] == ALL
    spec = {"initContainers": [{"name": "setup", "resources": {"limits": {"cpu": "1"}}}]}
    pinned = make_pod("own", qos="LSR", kube="Guaranteed", cpuset="6", init="setup", spec=spec)
    decision = CPUSetAllocator().decide(make_view(pods=(pinned,), cpu_rules=RULES, topology=flat(64)))
    of_init = [u for u in present(decision).updates if u.setting.cgroup_dir == f"{pinned.meta.cgroup_dir}/own-setup"]
    assert {u.setting.resource: u.value for u in of_init} == {CPUS: "6", QUOTA: -1}
    assert {u.neutral for u in of_init if u.setting.resource == QUOTA} == {100_000}


def test_a_pinned_pod_has_no_quota_and_the_kubelets_quota_is_restored() -> None:
    pod = with_limits("500m", qos="LSR", kube="Guaranteed", cpuset="6")
    decision = CPUSetAllocator().decide(make_view(pods=(pod,), cpu_rules=RULES, topology=flat(64)))
    quotas = {
        u.setting.cgroup_dir: (u.value, u.neutral) for u in present(decision).updates if u.setting.resource == QUOTA
    }
    assert quotas == {
        pod.meta.cgroup_dir: (-1, 100_000), container_of(pod, 0): (-1, 50_000), container_of(pod, 1): (-1, 50_000)
    }  # fmt: skip
    assert {file for _, file in decided(pod, allocator=CPUSetAllocator(unset_quota=False))} == {CPUS}


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(qos="BE", kube="BestEffort"),
        make_pod(qos="LS", phase="Succeeded"),
        make_pod(qos="LSR", kube="Guaranteed", cpuset="64"),
        make_pod(qos="LS", spec={"runtimeClassName": "kata"}),
    ],
    ids=["best effort", "finished", "its only CPU does not exist", "in a VM"],
)
def test_which_pods_are_not_changed(pod: PodView) -> None:
    assert decided(pod) == {}


@pytest.mark.parametrize("status", ["{", '{"cpuset":"1-"}', '{"cpuset":"6,64"}'])
def test_an_allocation_that_cannot_be_does_not_free_a_pod_from_its_class(status: str) -> None:
    pod = allocated(status, qos="LS")
    assert decided(pod) == {(container_of(pod), CPUS): ALL}


def test_an_announced_pod_does_not_get_the_cpus_of_a_listed_one() -> None:
    listed = make_pod("listed", qos="LSR", kube="Guaranteed", cpuset="6-7")
    comes = make_pod("comes", qos="LSE", kube="Guaranteed", cpuset="7-8")
    settings = decided(listed, announced=(comes,))
    assert settings[container_of(listed), CPUS] == "6-7"
    assert settings[container_of(comes), CPUS] == ALL and (comes.meta.cgroup_dir, QUOTA) not in settings
    context = HookContext(comes, HookContainer("c0"))
    view = make_view(pods=(listed,), cpu_rules=RULES, topology=flat(64))
    with pytest.raises(HookError, match="pod default/listed has the CPUs 7"):
        CPUSetAllocator().answer(HookStage.PRE_CREATE_CONTAINER, context, view)


def test_after_a_start_it_waits_for_the_topology_and_then_sets_pinned_pods() -> None:
    pinned, service = make_pod("pinned", qos="LSR", kube="Guaranteed", cpuset="6"), make_pod("web", qos="LS")
    allocator = CPUSetAllocator()
    view = make_view(pods=(pinned, service), topology=flat(64))
    assert allocator.decide(view) is None
    assert allocator.decide(replace(view, now=view.now + TOPOLOGY_WAIT_S / 2)) is None
    late = allocator.decide(replace(view, now=view.now + TOPOLOGY_WAIT_S))
    assert {u.setting for u in present(late).updates if u.setting.resource == CPUS} == {
        Setting(CPUS, container_of(pinned))
    }


def test_host_applications_of_class_ls_share_the_pools() -> None:
    apps = tuple(HostAppView(qos, qos, False, f"apps/{qos}") for qos in ("LS", "LSR", "BE", ""))
    assert decided(host_apps=apps) == {("apps/LS", CPUS): ALL}


def asked(
    pod: PodView, stage: HookStage = HookStage.PRE_CREATE_CONTAINER, rules: CPURules | None = RULES, **how: Any
) -> HookAnswer:
    context = HookContext(pod, HookContainer("c0"))
    return CPUSetAllocator(**how).answer(stage, context, make_view(cpu_rules=rules, topology=flat(64)))


@pytest.mark.parametrize(
    ("pod", "rules", "answer"),
    [
        (make_pod(qos="LSR", kube="Guaranteed", cpuset="6"), RULES, HookAnswer(cpuset="6", cfs_quota=-1)),
        (make_pod(qos="LS", cpuset="6"), RULES, HookAnswer(cpuset=ALL)),
        (make_pod(qos="LS"), RULES, HookAnswer(cpuset=ALL)),
        (make_pod(qos="BE", kube="BestEffort"), RULES, HookAnswer(cpuset="")),
        (make_pod(), STATIC, NO_CHANGE),
        (make_pod(qos="LS"), None, NO_CHANGE),
    ],
    ids=["pinned", "LS is not pinned", "service", "best effort is cleared", "CPUs of the kubelet", "too early"],
)
def test_response_for_a_new_container(pod: PodView, rules: CPURules | None, answer: HookAnswer) -> None:
    assert asked(pod, rules=rules) == answer


@pytest.mark.parametrize("status", ["{", '{"cpuset":"64"}'], ids=["malformed", "a CPU that does not exist"])
def test_the_hook_reports_invalid_allocations(status: str) -> None:
    with pytest.raises(HookError, match=r"resource-status|no CPUs 64"):
        asked(allocated(status, qos="LSR", kube="Guaranteed"))


def test_the_hook_can_keep_the_quota() -> None:
    assert asked(make_pod(qos="LSR", kube="Guaranteed", cpuset="6"), unset_quota=False) == HookAnswer(cpuset="6")


cpu_sets = st.sets(st.integers(0, 15)).map(CPUSet)
rules_of = st.builds(
    CPURules,
    shared=st.dictionaries(st.integers(0, 1), cpu_sets),
    best_effort=st.dictionaries(st.integers(0, 1), cpu_sets),
    system=cpu_sets,
    kubelet_static=st.booleans(),
)


@st.composite
def any_pods(draw: DrawFn) -> list[PodView]:
    pods = []
    for number in range(draw(st.integers(1, 5))):
        status = draw(st.sampled_from(["", '{"cpuset":"0-1"}', on_node(0), on_node(1, "500", BATCH), on_node(1, "0")]))
        annotations = {names.ANNOTATION_RESOURCE_STATUS: status} if status else {}
        qos = draw(st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", ""]))
        kube = draw(st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]))
        pods.append(make_pod(f"p{number}", qos=qos, kube=kube, annotations=annotations, containers=2))
    return pods


@given(any_pods(), rules_of, st.booleans())
def test_every_container_has_cpus_and_stays_in_its_pool(pods: list[PodView], rules: CPURules, manager: bool) -> None:
    settings = decided(*pods, rules=rules, allocator=CPUSetAllocator(be_cpu_manager=manager), topology=flat(16))
    for pod in pods:
        values = {settings.get((container_of(pod, number), CPUS)) for number in range(2)}
        assert len(values) == 1, "containers of a pod share its fate"
        value = values.pop()
        if value is None:
            continue
        cpus = CPUSet.parse(value)
        assert cpus, "an empty set would let it run anywhere"
        pools = [pod.cpuset, *rules.shared.values(), *rules.best_effort.values(), rules.system]
        assert cpus <= CPUSet().union(*pools)
        if not pod.cpuset and pod.raw_qos not in ("BE", "SYSTEM"):
            assert cpus <= CPUSet().union(*rules.shared.values()), "services keep off what others have for themselves"
    assert all(file != QUOTA or value == -1 for (_, file), value in settings.items())
