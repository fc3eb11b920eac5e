"""CPU suppress: the worked examples of spec 03 §3.2, and properties of any node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import HostAppView, NodeView
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.qosmanager.strategies.cpupick import pick
from koordlet.qosmanager.strategies.cpusuppress import CPUSuppress, budget, choose, next_quota, unsuppressed
from koordlet.resourceexecutor import Setting
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.qosmanager.conftest import flat, make_node, make_pod, make_view, topology
from tests.present import present

BE_DIR = "kubepods/besteffort"
SIBLINGS_ACROSS = {cpu: (cpu % 4, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8)}
TWO_SOCKETS_A_NODE = {cpu: (cpu // 2, cpu // 4, cpu // 8) for cpu in range(16)}


def on(**threshold: Any) -> dict[str, Any]:
    return {"resourceUsedThresholdWithBE": {"enable": True, **threshold}}


@pytest.mark.parametrize(
    ("rows", "count", "expected"),
    [
        (SIBLINGS_ACROSS, 3, [0, 4, 2]),
        (TWO_SOCKETS_A_NODE, 5, [0, 1, 4, 5, 8]),
        (TWO_SOCKETS_A_NODE, 17, []),
        (TWO_SOCKETS_A_NODE, 0, []),
    ],
    ids=["a core, then the next bucket", "two sockets per node", "too few", "none requested"],
)
def test_pick_takes_whole_cores_round_robin(
    rows: dict[int, tuple[int, int, int]], count: int, expected: list[int]
) -> None:
    assert pick(count, rows, topology(rows)) == expected


def test_pick_starts_with_the_largest_bucket() -> None:
    assert pick(4, [2, 3, 4, 5, 6, 7], flat(8, 4)) == [4, 5, 2, 3]


@given(st.sets(st.integers(0, 15)), st.integers(0, 18), st.sampled_from([2, 4, 8, 16]))
def test_pick_takes_the_exact_count_or_nothing(candidates: set[int], count: int, per_socket: int) -> None:
    taken = pick(count, candidates, flat(16, per_socket))
    assert len(taken) == len(set(taken)) == (count if 0 < count <= len(candidates) else 0)
    assert set(taken) <= candidates
    assert taken == pick(count, sorted(candidates, reverse=True), flat(16, per_socket))


def test_the_budget_follows_the_worked_example() -> None:
    """Capacity 20, threshold 70 %: 14 cores less 8 of a pod that is not BE; system is max(11 - 12, 0)."""
    view = make_view(
        node=make_node("20"), cpu=11_000,
        pods=(make_pod("be", qos="BE", kube="BestEffort", cpu=4_000), make_pod("unknown", cpu=8_000)),
    )  # fmt: skip
    assert budget(view, 70, None) == 6_000
    assert budget(view, 70, 50) == 10_000


@pytest.mark.parametrize(
    ("apps", "expected"),
    [
        ((HostAppView("nginx", "LS", False, "", 1_000),), 14_000 - 1_000 - 500),
        ((HostAppView("yarn", "BE", True, "", 1_000),), 14_000 - 500),
        ((HostAppView("yarn", "BE", False, "", 1_000),), 14_000 - 1_000 - 500),
    ],
    ids=["LS", "BE below BestEffort", "BE elsewhere"],
)
def test_host_applications_count_by_class_and_cgroup(apps: tuple[HostAppView], expected: int) -> None:
    pods = (make_pod("be", qos="BE", kube="BestEffort", cpu=500),)
    assert budget(make_view(node=make_node("20"), cpu=2_000, pods=pods, host_apps=apps), 70, None) == expected


def test_the_nodes_reservation_is_the_minimum_of_the_system() -> None:
    annotations = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-2"}'}
    view = make_view(node=make_node("8", annotations=annotations), cpu=1_000, pods=(make_pod(cpu=900),))
    assert view.reserved("cpu") == 3_000
    assert budget(view, 100, None) == 8_000 - 900 - 3_000


@pytest.mark.parametrize("missing", [{"cpu": None}, {"node": None}, {"pods": (make_pod(),)}, {"pods": ()}])
def test_no_budget_without_figures(missing: dict[str, Any]) -> None:
    view = make_view(**{"cpu": 1_000, "pods": (make_pod(cpu=1),), **missing})
    assert budget(view, 65, None) is None


def test_choose_follows_the_worked_example() -> None:
    """LSR pod on 0-1, old size 4, budget 6.2 -> 7 -> limited to 5: one LSR CPU, four others."""
    view = make_view(topology=flat(8, 4), pods=(make_pod("lsr", qos="LSR", kube="Guaranteed", cpuset="0-1"),))
    assert str(choose(view, 6_200, CPUSet(range(4)))) == "0,2-5"


@pytest.mark.parametrize(
    ("milli", "old", "size"),
    [(-5_000, "0-7", 2), (1, "0-1", 2), (7_500, "0-1", 3), (3_000, "0-7", 3), (8_000, "0-6", 8)],
    ids=["at least two", "rounded up to two", "grows by a tenth", "shrinks at once", "all"],
)
def test_the_number_of_cpus_is_bounded(milli: int, old: str, size: int) -> None:
    assert len(choose(make_view(), milli, CPUSet.parse(old))) == size


def test_cpus_of_lse_pods_and_of_the_system_are_not_used() -> None:
    annotations = {
        "node.koordinator.sh/reservation": '{"reservedCPUs":"0"}',
        "node.koordinator.sh/system-qos-resource": '{"cpuset":"1"}',
    }
    pods = (make_pod("lse", qos="LSE", kube="Guaranteed", cpuset="2-3"),)
    view = make_view(node=make_node(annotations=annotations), pods=pods)
    assert str(unsuppressed(view)) == "4-7"
    assert str(choose(view, 8_000, CPUSet(range(8)))) == ""  # eight requested, four available: no change
    assert str(choose(view, 4_000, CPUSet(range(8)))) == "4-7"


def test_no_choice_without_available_cpus() -> None:
    view = make_view(pods=(make_pod("lse", qos="LSE", kube="Guaranteed", cpuset="0-7"),))
    assert choose(view, 4_000, CPUSet()) == CPUSet()


@pytest.mark.parametrize(
    ("milli", "current", "expected"),
    [
        (20_000, 1_000_000, 1_800_000),
        (20_000, 1_900_000, 2_000_000),
        (20_000, 2_400_000, 2_000_000),
        (20_000, 1_980_000, 1_980_000),
        (20_000, -1, 2_000_000),
        (1, 80_000, 2_000),
    ],
)
def test_the_quota_grows_slowly_and_shrinks_at_once(milli: int, current: int, expected: int) -> None:
    assert next_quota(make_view(node=make_node("80")), milli, current) == expected


def be_node(**fields: Any) -> NodeView:
    pods = (
        make_pod("be", qos="BE", kube="BestEffort", cpu=1_000, containers=2),
        make_pod("web", qos="LS", cpu=2_000),
    )
    return make_view(**{"pods": pods, "cpu": 3_100, "held": {Setting("cpuset.cpus", BE_DIR): "0-7"}, **fields})


def values(decision: QoSDecision) -> dict[tuple[str, str], Any]:
    return {(update.setting.resource, update.setting.cgroup_dir): update.value for update in decision.updates}  # type: ignore[misc]


def test_the_chosen_cpus_apply_to_every_best_effort_cgroup() -> None:
    """8 cores, 65 %: 5200 - 2000 - 100 = 3100 -> 4 CPUs, for directory, pod and both containers."""
    decision = CPUSuppress().decide(be_node(slo=on()))
    pod = f"{BE_DIR}/poduid-be"
    assert decision is not None
    assert values(decision) == {("cpuset.cpus", path): "0-3" for path in (BE_DIR, pod, f"{pod}/be-c0", f"{pod}/be-c1")}
    assert decision.figures == {
        "be_suppress_cpu_cores": {("cpuset",): 4.0},
        "be_suppress_ls_used_cpu_cores": {(): 2.0},
    }


def test_with_a_static_kubelet_only_containers_are_restricted() -> None:
    decision = CPUSuppress().decide(be_node(slo=on(), kubelet_static=True))
    assert decision is not None
    assert set(values(decision).values()) == {"0-7", "0-3"}
    assert values(decision)["cpuset.cpus", BE_DIR] == "0-7"


def test_the_quota_policy_restores_the_cpus() -> None:
    held = {Setting("cpu.cfs_quota_us", BE_DIR): -1}
    decision = CPUSuppress().decide(be_node(slo=on(cpuSuppressPolicy="cfsQuota"), held=held))
    assert decision is not None
    assert values(decision) == {("cpu.cfs_quota_us", BE_DIR): 310_000}
    assert decision.figures == {
        "be_suppress_cpu_cores": {("cfsQuota",): 3.1},
        "be_suppress_ls_used_cpu_cores": {(): 2.0},
    }


def test_while_it_interferes_best_effort_gets_part_of_its_quota() -> None:
    held = {Setting("cpu.cfs_quota_us", BE_DIR): -1}
    view = be_node(slo=on(cpuSuppressPolicy="cfsQuota"), held=held)
    assert values(present(CPUSuppress(target=lambda: 40).decide(view))) == {("cpu.cfs_quota_us", BE_DIR): 124_000}


def test_disabled_it_declares_nothing_so_that_everything_is_restored() -> None:
    assert present(CPUSuppress().decide(be_node())).updates == ()


def test_disabled_best_effort_still_avoids_exclusive_cpus() -> None:
    lse = make_pod("lse", qos="LSE", kube="Guaranteed", cpuset="0", cpu=1)
    view = be_node(pods=(lse, make_pod("be", qos="BE", kube="BestEffort", cpu=1)))
    assert set(values(present(CPUSuppress().decide(view))).values()) == {"1-7"}


def test_the_cpu_manager_of_best_effort_places_pods_with_an_allocation_itself() -> None:
    status = '{"numaNodeResources":[{"node":0,"resources":{"kubernetes.io/batch-cpu":"500"}}]}'
    lse = make_pod("lse", qos="LSE", kube="Guaranteed", cpuset="0", cpu=1)
    allocated = make_pod("a", qos="BE", kube="BestEffort", annotations={names.ANNOTATION_RESOURCE_STATUS: status})
    plain = make_pod("be", qos="BE", kube="BestEffort")
    settings = values(present(CPUSuppress(be_cpu_manager=True).decide(be_node(pods=(lse, allocated, plain)))))
    assert ("cpuset.cpus", allocated.meta.cgroup_dir) in settings
    assert ("cpuset.cpus", plain.containers[0].meta.cgroup_dir) in settings
    assert ("cpuset.cpus", allocated.containers[0].meta.cgroup_dir) not in settings


def test_growth_starts_from_the_effective_cpus_of_a_v2_cgroup() -> None:
    held = {Setting("cpuset.cpus", BE_DIR): "", Setting("cpuset.cpus.effective", BE_DIR): "0-7"}
    assert values(present(CPUSuppress().decide(be_node(slo=on(), held=held))))["cpuset.cpus", BE_DIR] == "0-3"


def test_a_reservation_of_an_amount_counts_with_its_resolved_cpus() -> None:
    rules = CPURules(withheld=CPUSet.parse("0-3"))
    settings = values(present(CPUSuppress().decide(be_node(slo=on(), cpu_rules=rules))))
    assert settings["cpuset.cpus", BE_DIR] == "4-7"


@pytest.mark.parametrize("missing", [{"cpu": None}, {"topology": None}, {"qos_dirs": {}}])
def test_no_decision_while_figures_are_missing(missing: dict[str, Any]) -> None:
    assert CPUSuppress().decide(be_node(slo=on(), **missing)) is None


@pytest.mark.parametrize("text", ["{", '{"cpuset":"a"}', '{"cpuset":5}'])
def test_a_malformed_annotation_counts_as_absent(text: str) -> None:
    odd = make_pod("odd", qos="LSE", annotations={"scheduling.koordinator.sh/resource-status": text})
    assert odd.cpuset == CPUSet()
