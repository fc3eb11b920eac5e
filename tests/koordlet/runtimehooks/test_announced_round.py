"""A round for announced pods alone gives them the values of a full round, and changes no other pod."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.audit import NullAuditor
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.resourceexecutor import DesiredSetting, Executor, Setting
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.runtimehooks.contexts import pod_of
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.hooks.coresched import CoreSched
from koordlet.runtimehooks.hooks.cpunormalization import CPUNormalization
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.runtimehooks.hooks.groupidentity import GroupIdentity
from koordlet.runtimehooks.hooks.netqos import NetQoS
from koordlet.runtimehooks.hooks.oomscore import OOMScoreAdj
from koordlet.runtimehooks.hooks.resctrlpods import ResctrlPods
from koordlet.runtimehooks.hooks.terway import TerwayQoS
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.kernel import Feature
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.koordlet.resourceexecutor.conftest import ModelKernel

DIRECTORIES = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
BATCH = "node.koordinator.sh/extended-resource-spec"


class Files(ModelKernel):
    """Has every setting of every directory, as on v2: no group bounds the CPUs of another one."""

    def read(self, setting: Setting) -> Any:
        return self.values.get(setting, 0 if setting.resource != "cpuset.cpus" else "0-7")

    def write(self, setting: Setting, value: Any) -> None:
        self.values[setting] = value

    def covers_children(self, resource: str) -> bool:
        return False

    def gone(self, setting: Setting) -> bool:
        return False


@dataclass
class Node:
    """A koordlet's strategies and a node view."""

    view: NodeView
    strategies: list[Strategy]
    files: Files = field(default_factory=Files)
    views_built: int = 0

    def __post_init__(self) -> None:
        registries = Registries()
        self.executor = Executor(self.files, Ledger(None, "boot"), NullAuditor(), registries)  # type: ignore[arg-type]
        self.manager = QoSManager(
            [(strategy, 10.0) for strategy in self.strategies], self.build_view, self.executor, None, registries,  # type: ignore[arg-type]
            outline=lambda: replace(self.view, host_apps=(), announced=()),
        )  # fmt: skip

    def build_view(self) -> NodeView:
        self.views_built += 1
        return self.view

    def desired(self) -> dict[Setting, Any]:
        return {setting: merged.desired.value for setting, merged in self.executor.desired.items()}


def every(supports: Callable[[str, str], bool]) -> list[Strategy]:
    return [
        GroupIdentity(supports), CPUSetAllocator(be_cpu_manager=True), CPUNormalization(), OOMScoreAdj(),
        CoreSched(Feature(True)), BatchResource(), ResctrlPods(lambda: None),
        NetQoS(lambda: "eth0", lambda resource, directory: False), TerwayQoS(),
    ]  # fmt: skip


amounts = st.integers(0, 4000)
kinds = st.sampled_from(["", "LSE", "LSR", "LS", "BE", "SYSTEM"])


@st.composite
def pod_facts(draw: st.DrawFn) -> dict[str, Any]:
    """Labels, annotations and class of a pod, for a listed pod and for an announced pod."""
    annotations: dict[str, str] = {}
    if draw(st.booleans()):
        batch = {"kubernetes.io/batch-cpu": str(draw(amounts)), "kubernetes.io/batch-memory": f"{draw(amounts)}Mi"}
        annotations[BATCH] = json.dumps({"containers": {"c0": {"requests": batch, "limits": batch}}})
    if draw(st.booleans()):
        cpus = draw(st.sets(st.integers(0, 9), min_size=1, max_size=3))
        annotations["scheduling.koordinator.sh/resource-status"] = json.dumps({"cpuset": ",".join(map(str, cpus))})
    if draw(st.booleans()):
        annotations["koordinator.sh/oom-score-adj"] = str(draw(st.integers(-1000, 1000)))
    if draw(st.booleans()):
        annotations["koordinator.sh/networkQOS"] = json.dumps({"EgressLimit": "10M", "IngressLimit": "10M"})
    if draw(st.booleans()):
        annotations["node.koordinator.sh/resctrl"] = json.dumps({"llc": {"schemata": {"range": [0, 50]}}})
    return {"qos": draw(kinds), "kube": draw(st.sampled_from(sorted(DIRECTORIES))), "annotations": annotations}


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `make_view`."""
    identity = st.one_of(st.none(), st.sampled_from([-1, 0, 2]))

    def of_class() -> dict[str, Any]:
        container = draw(identity)
        cpu = {"enable": container is not None, "groupIdentity": container or 0, "schedIdle": draw(st.integers(0, 1))}
        return {"cpuQOS": cpu}

    policy = {"cpuPolicy": draw(st.sampled_from(["groupIdentity", "coreSched"])),
              "netQOSPolicy": draw(st.sampled_from(["tc", "terway-qos"]))}  # fmt: skip
    slo = {
        "resourceQOSStrategy": {"policies": policy, **{f"{name}Class": of_class() for name in ("lsr", "ls", "be")}},
        "resourceUsedThresholdWithBE": {
            "enable": draw(st.booleans()), "cpuSuppressPolicy": draw(st.sampled_from(["cpuset", "cfsQuota"])),
        },
        "systemStrategy": {"totalNetworkBandwidth": draw(st.sampled_from(["0", "1G"]))},
    }  # fmt: skip
    rules = CPURules(shared={0: CPUSet(range(8))}, best_effort={0: CPUSet(range(6))})
    return {
        "slo": slo,
        "qos_dirs": DIRECTORIES,
        "cpu_rules": draw(st.sampled_from([None, rules])),
        "normalization": draw(st.sampled_from([1.0, 1.25])),
        "pods": tuple(make_pod(f"p{number}", **facts) for number, facts in enumerate(draw(st.lists(pod_facts())))),
    }


def announced_pod(facts: dict[str, Any], uid: str) -> PodView:
    labels = {"koordinator.sh/qosClass": facts["qos"]} if facts["qos"] else {}
    return pod_of(uid, "ns", uid, labels, facts["annotations"], f"/{DIRECTORIES[facts['kube']]}/pod{uid}")


@given(nodes(), st.lists(pod_facts(), min_size=1, max_size=3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_announced_pods_get_the_values_of_a_full_round(node: dict[str, Any], facts: list[Any], vendor: bool) -> None:
    def supports(resource: str, directory: str) -> bool:
        return vendor or resource != "cpu.bvt_warp_ns"

    view = make_view(**node)
    announced = tuple(announced_pod(pod, f"new{number}") for number, pod in enumerate(facts))
    alone, whole = Node(view, every(supports)), Node(replace(view, announced=announced), every(supports))
    alone.manager.follow()
    alone.view = whole.view  # the view of later rounds
    alone.manager.follow_announced(announced)
    whole.manager.follow()
    assert alone.desired() == whole.desired()
    assert alone.files.values == whole.files.values
    alone.manager.follow()
    assert (alone.desired(), alone.files.values) == (whole.desired(), whole.files.values), (
        "a later full round changes nothing"
    )


def test_the_node_view_is_built_only_for_decisions_about_all_pods() -> None:
    view = make_view(qos_dirs=DIRECTORIES)
    plain = announced_pod({"qos": "BE", "kube": "BestEffort", "annotations": {}}, "plain")
    with_group = {"node.koordinator.sh/resctrl": json.dumps({"llc": {"schemata": {"range": [0, 50]}}})}
    shared = announced_pod({"qos": "LS", "kube": "Burstable", "annotations": with_group}, "shared")
    node = Node(view, every(lambda resource, directory: False))
    node.manager.follow_announced((plain,))
    assert node.views_built == 0
    node.manager.follow_announced((shared,))
    assert node.views_built == 1


def test_a_strategy_that_raises_does_not_affect_the_others() -> None:
    class Broken(BatchResource):
        name = "broken"

        def decide(self, view: NodeView) -> QoSDecision | None:
            raise RuntimeError("no")

    facts = {"requests": {"kubernetes.io/batch-cpu": "500"}, "limits": {"kubernetes.io/batch-cpu": "500"}}
    pod = announced_pod(
        {"qos": "BE", "kube": "BestEffort", "annotations": {BATCH: json.dumps({"containers": {"c0": facts}})}}, "1"
    )
    node = Node(make_view(qos_dirs=DIRECTORIES), [Broken(), BatchResource()])
    node.manager.follow_announced((pod,))
    assert node.files.values[Setting("cpu.shares", pod.meta.cgroup_dir)] == 512


@pytest.mark.parametrize(("suffix", "corrected"), [(".slice", True), ("", False)], ids=["slices", "plain groups"])
def test_values_that_systemd_overwrote_are_written_again_at_once(suffix: str, corrected: bool) -> None:
    """In the pod's own group in any case, in the groups above only if systemd created them."""
    facts = {"limits": {"kubernetes.io/batch-cpu": "500"}}
    spec = {"qos": "BE", "kube": "BestEffort", "annotations": {BATCH: json.dumps({"containers": {"c0": facts}})}}
    pod = announced_pod(spec, "1")
    pod = replace(pod, meta=replace(pod.meta, cgroup_dir=f"{DIRECTORIES['BestEffort']}/pod1{suffix}"))
    node = Node(make_view(qos_dirs=DIRECTORIES), [BatchResource()])
    parent, own = Setting("cpu.shares", DIRECTORIES["BestEffort"]), Setting("cpu.cfs_quota_us", pod.meta.cgroup_dir)
    node.executor.declare("o", (DesiredSetting(parent, 2),))
    node.manager.follow_announced((pod,))
    node.executor.apply()
    assert (node.files.values[parent], node.files.values[own]) == (2, 50_000)
    node.files.values |= {parent: 100, own: -1}
    node.executor.apply()
    assert node.files.values[own] == -1, "checked a moment ago"
    node.manager.follow_announced((pod,))
    assert (node.files.values[own], node.files.values[parent]) == (50_000, 2 if corrected else 100)


def test_without_a_node_view_there_is_no_decision() -> None:
    node = Node(make_view(), [])
    node.manager._outline = lambda: None
    assert node.manager.follow_announced(()) is None


@pytest.mark.parametrize("again", [False, True], ids=["declared again", "omitted"])
def test_added_settings_stay_until_the_owner_declares(again: bool) -> None:
    node = Node(make_view(), [])
    first, other = Setting("cpu.shares", "a"), Setting("cpu.shares", "b")
    node.executor.declare("o", (DesiredSetting(first, 2),))
    node.executor.apply()
    assert node.executor.add("o", (DesiredSetting(first, 2), DesiredSetting(other, 3))) == [first, other]
    result = node.executor.apply_to((first, other))
    assert [change.setting for change in result.written] == [other]
    node.executor.declare(
        "o", (DesiredSetting(first, 2), DesiredSetting(other, 3)) if not again else (DesiredSetting(first, 2),)
    )
    node.executor.apply()
    assert node.files.values[other] == (0 if again else 3)


def test_owners_keep_their_ranks_for_added_settings() -> None:
    node = Node(make_view(), [])
    setting = Setting("cpu.shares", "a")
    node.executor.declare("a", (DesiredSetting(setting, 2),))
    node.executor.apply()
    node.executor.add("b", (DesiredSetting(setting, 7),))
    merged = node.executor.desired[setting]
    assert (merged.owner, merged.desired.value, merged.overruled) == ("a", 2, ("b",))


def test_adding_settings_is_not_a_declaration() -> None:
    """Leftovers of an earlier koordlet must not stay because a pod was announced before the first round."""
    left = Setting("cpu.shares", "left")
    files = Files({left: 9})
    executor = Executor(
        files, Ledger(None, "boot", {left: 1}), NullAuditor(), Registries(), expected=["o"],  # type: ignore[arg-type]
    )  # fmt: skip
    update = DesiredSetting(Setting("cpu.shares", "a"), 2)
    executor.apply_to(executor.add("o", (update,)))
    executor.apply()
    assert files.values[left] == 9
    executor.declare("o", (update,))
    executor.apply()
    assert files.values[left] == 1
