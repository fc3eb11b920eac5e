"""Hook calls of any protocol: announced pods, the round that a call waits for, timeouts, policies; the registration
file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import PodView
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.calls import ALL_PODS, ANNOUNCED, HookCalls
from koordlet.runtimehooks.contexts import pod_of
from koordlet.runtimehooks.protocols.registration import RegistrationFileError, register
from koordlet.runtimehooks.stages import FailurePolicy, HookAnswer, HookContext, HookError, Hooks, HookStage
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.waiting import until

SANDBOX, CREATE, STOP = HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER, HookStage.POST_STOP_POD_SANDBOX


class Node:
    """Hook calls on a constructed node; `rounds` has the announced pods of each round, `full` counts rounds for all
    pods."""

    def __init__(self, policy: FailurePolicy = FailurePolicy.IGNORE, patience: float = 30.0) -> None:
        self.known: dict[str, Any] = {}
        self.now = 0.0
        self.error: Exception | None = None
        self.rounds: list[list[str]] = []
        self.full = 0
        self.announced = AnnouncedPods(lambda: self.known, lambda: "kubepods", lambda: self.now, max_pods=3)
        self.registries = Registries()
        self.registries.node = "n"
        plugins = [_Shares()]
        self.calls = HookCalls(
            Hooks(plugins, self.registries, policy=policy), self.announced, make_view, self.follow, self.registries,
            follow_announced=self.follow_announced, round_timeout=patience,
        )  # fmt: skip

    def follow(self) -> None:
        self.full += 1

    def follow_announced(self, pods: Sequence[PodView]) -> None:
        if self.error is not None:
            raise self.error
        self.rounds.append([pod.meta.uid for pod in pods])

    def counts(self) -> dict[tuple[str, str], float]:
        (family,) = [f for f in self.registries.internal.collect() if f.name == "koordlet_runtime_hook_calls"]
        return {(s.labels["stage"], s.labels["status"]): s.value for s in family.samples}


class _Shares:
    hook, gate, stages = "shares", "none", (SANDBOX, CREATE)

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        return HookAnswer(cpu_shares=2)


def pod_context(uid: str = "1", parent: str = "") -> HookContext:
    return HookContext(pod_of(f"p{uid}", "ns", uid, {}, {}, parent or f"/kubepods/pod{uid}"))


async def test_a_call_returns_after_a_round_with_its_pod() -> None:
    node = Node()
    assert await node.calls.answer(SANDBOX, pod_context()) == HookAnswer(cpu_shares=2)
    assert node.rounds == [["1"]]
    assert node.counts() == {("PreRunPodSandbox", "answered"): 1}


async def test_concurrent_calls_share_a_round() -> None:
    node = Node()
    node.calls._earliest[ANNOUNCED] = node.calls._clock() + 0.05
    await asyncio.gather(*(node.calls.answer(SANDBOX, pod_context(uid)) for uid in "123"))
    assert node.rounds == [["1", "2", "3"]]
    assert node.full == 0, "the rounds decide for no other pod"


async def test_a_round_for_all_pods_delays_no_call() -> None:
    node = Node()
    node.calls.follow_soon()
    node.calls.follow_soon()
    await node.calls.answer(SANDBOX, pod_context())
    assert (node.rounds, node.full) == ([["1"]], 0)
    await until(lambda: node.full)
    assert node.full == 1
    node.calls._earliest[ALL_PODS] = node.calls._clock() + 3600
    node.calls.follow_soon()
    await node.calls.answer(SANDBOX, pod_context("2"))
    assert node.rounds == [["1"], ["2"]]
    await node.calls.close()


@pytest.mark.parametrize(("took", "rest"), [(0.001, 0.001), (1.0, 0.02)], ids=["a small node", "a full node"])
async def test_a_round_is_followed_by_a_pause(took: float, rest: float) -> None:
    node = Node()
    now = [100.0]
    follow_announced = node.follow_announced

    def slow(pods: Sequence[PodView]) -> None:
        follow_announced(pods)
        now[0] += took

    node.calls._clock = lambda: now[0]
    node.calls._follow_announced = slow
    await node.calls.answer(SANDBOX, pod_context("1"))
    assert node.calls._earliest[ANNOUNCED] == pytest.approx(100.0 + took + rest)
    now[0] += rest
    await node.calls.answer(SANDBOX, pod_context("2"))
    assert node.rounds == [["1"], ["2"]]


async def test_a_container_of_a_known_pod_waits_for_no_round() -> None:
    node = Node()
    node.known["1"] = make_pod().meta
    await node.calls.answer(CREATE, pod_context())
    assert (node.rounds, len(node.announced)) == ([], 0)
    await node.calls.answer(SANDBOX, pod_context())
    assert node.rounds == [["uid-pod"]], "its sandbox does, by the kubelet's word: who knows when it was decided last"


async def test_a_container_of_an_unknown_pod_announces_it_once() -> None:
    node = Node()
    await node.calls.answer(CREATE, pod_context())
    await node.calls.answer(CREATE, pod_context())
    assert node.rounds == [["1"]]


async def test_a_container_below_systemd_slices_causes_another_round_for_its_pod() -> None:
    node = Node()
    for _ in range(2):
        await node.calls.answer(CREATE, pod_context(parent="/kubepods/kubepods-pod1.slice"))
        await until(lambda: node.calls._pause(ANNOUNCED) <= 0)
    assert node.rounds == [["1"], ["1"]]


async def test_a_stopped_sandbox_is_forgotten() -> None:
    node = Node()
    await node.calls.answer(SANDBOX, pod_context())
    assert await node.calls.answer(STOP, pod_context()) == HookAnswer()
    assert len(node.announced) == 0


@pytest.mark.parametrize("parent", ["/system.slice/x", "kubepods", "/"], ids=["elsewhere", "their root", "the root"])
async def test_pods_outside_the_kubelets_directories_only_get_a_response(parent: str) -> None:
    node = Node()
    assert await node.calls.answer(SANDBOX, pod_context(parent=parent)) == HookAnswer(cpu_shares=2)
    assert (node.rounds, len(node.announced)) == ([], 0)


@pytest.mark.parametrize("late", [True, False], ids=["no round in time", "a round that fails"])
async def test_a_round_that_does_not_end_in_time(late: bool) -> None:
    """Policy Ignore responds all the same, policy Fail raises; both are counted."""
    for policy in FailurePolicy:
        node = Node(policy, patience=0.0 if late else 30.0)
        node.calls._earliest[ANNOUNCED] = node.calls._clock() + (3600 if late else 0)
        node.error = None if late else RuntimeError("strategies are gone")
        if policy is FailurePolicy.IGNORE:
            assert await node.calls.answer(SANDBOX, pod_context()) == HookAnswer(cpu_shares=2)
        else:
            with pytest.raises(HookError, match=r"pod ns/p1: settings (not in place|could not be decided)"):
                await node.calls.answer(SANDBOX, pod_context())
        assert node.counts() == {("PreRunPodSandbox", "late"): 1}


@pytest.mark.parametrize("policy", FailurePolicy)
async def test_an_exception_in_the_node_view(policy: FailurePolicy) -> None:
    node = Node(policy)

    def broken() -> Any:
        raise RuntimeError("no figures")

    node.calls._view = broken
    if policy is FailurePolicy.IGNORE:
        assert await node.calls.answer(SANDBOX, pod_context()) == HookAnswer()
        assert node.rounds == [["1"]], "the strategies see the pod all the same"
    else:
        with pytest.raises(HookError, match="no node view"):
            await node.calls.answer(SANDBOX, pod_context())


async def test_a_shorter_deadline_of_the_caller_applies() -> None:
    node = Node()
    node.calls._earliest[ANNOUNCED] = node.calls._clock() + 3600  # the next round is an hour away
    await node.calls.answer(SANDBOX, pod_context(), seconds=0.01)
    assert node.counts() == {("PreRunPodSandbox", "late"): 1}


async def test_no_round_runs_after_the_stop() -> None:
    """Otherwise a due round would write settings that were just restored."""
    node = Node()
    for kind in (ANNOUNCED, ALL_PODS):
        node.calls._earliest[kind] = node.calls._clock() + 0.5  # time to stop before, also on a slow machine
    node.calls.follow_soon()
    waiting = asyncio.ensure_future(node.calls.answer(SANDBOX, pod_context()))
    await asyncio.sleep(0)
    await node.calls.close()
    assert await waiting == HookAnswer(cpu_shares=2)
    assert await node.calls.answer(SANDBOX, pod_context("2")) == HookAnswer(cpu_shares=2)
    await asyncio.sleep(0.6)
    assert (node.rounds, node.full) == ([], 0)
    assert node.counts() == {("PreRunPodSandbox", "late"): 2}


def test_announced_pods_are_forgotten_when_listed_or_after_a_time() -> None:
    node = Node()
    pod = pod_context().pod
    assert node.announced.add(pod)
    assert not node.announced.add(pod), "no news"
    assert node.announced.add(replace(pod, raw_qos="LS")), "news: another class"
    assert node.announced.directory("1") == "kubepods/pod1"
    node.now = 301.0
    assert node.announced.current() == ()
    node.announced.add(pod)
    node.known["1"] = make_pod().meta
    assert node.announced.current() == ()
    assert node.announced.directory("1") == make_pod().meta.cgroup_dir
    assert node.announced.directory("2") == ""


def test_the_number_of_announced_pods_is_bounded() -> None:
    node = Node()
    for uid in "1234":
        node.announced.add(pod_context(uid).pod)
    assert [pod.meta.uid for pod in node.announced.current()] == ["2", "3", "4"]


def test_the_registration_is_written_atomically_and_only_on_change(tmp_path: Path) -> None:
    stages = [SANDBOX, CREATE]
    path = register(tmp_path, "/run/k.sock", FailurePolicy.FAIL, stages)
    assert path.name == "koordlet.json"
    assert path.read_text().startswith('{\n\t"remote-endpoint"')
    assert json.loads(path.read_text()) == {
        "remote-endpoint": "/run/k.sock",
        "failure-policy": "Fail",
        "runtime-hooks": ["PreCreateContainer", "PreRunPodSandbox"],
    }
    inode = path.stat().st_ino
    register(tmp_path, "/run/k.sock", FailurePolicy.FAIL, stages)
    assert path.stat().st_ino == inode
    register(tmp_path, "/run/k.sock", FailurePolicy.IGNORE, stages)
    assert path.stat().st_ino != inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["koordlet.json"]


def test_a_registration_that_cannot_be_written_reports_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RegistrationFileError, match="No such file"):
        register(tmp_path / "none", "/run/k.sock", FailurePolicy.FAIL, [SANDBOX])
