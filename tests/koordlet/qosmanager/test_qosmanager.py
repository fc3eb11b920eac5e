"""The manager: due strategies decide on one node view, and one that raises affects only itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.eviction import EvictionTask
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.rules.cpu import CPURules
from koordlet.resourceexecutor import DesiredSetting, PassResult, Setting
from tests.koordlet.qosmanager.conftest import CPUSet, make_view

SHARES = Setting("cpu.shares", "kubepods")


@dataclass
class Executor:
    declared: dict[str, tuple[DesiredSetting, ...]] = field(default_factory=dict)
    passes: int = 0

    def declare(self, owner: str, updates: tuple[DesiredSetting, ...]) -> None:
        self.declared[owner] = updates

    def apply(self) -> PassResult:
        self.passes += 1
        return PassResult()


@dataclass
class Evictor:
    worked: list[Any] = field(default_factory=list)

    async def work(self, tasks: Any) -> int:
        self.worked.append(tasks)
        return len(tasks)


@dataclass
class Scripted:
    name: str
    answers: list[Any]
    follows_pods: bool = False
    cooled: list[float] = field(default_factory=list)
    news: bool = False

    def outdated(self) -> bool:
        return self.news

    def evicted(self, now: float) -> None:
        self.cooled.append(now)

    def decide(self, view: Any) -> QoSDecision | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        result: QoSDecision | None = answer
        return result


def manager_of(*strategies: Scripted, interval: float = 1.0) -> tuple[QoSManager, Executor, Registries, dict[str, Any]]:
    executor, registries = Executor(), Registries()
    registries.node = "n"
    clock = {"now": 0.0, "view": make_view()}

    def node_view() -> Any:
        return clock["view"] and replace(clock["view"], now=clock["now"])  # type: ignore[type-var]

    evictor = Evictor()
    manager = QoSManager([(strategy, interval) for strategy in strategies], node_view, executor, evictor, registries)  # type: ignore[arg-type, misc]
    clock["evictor"] = evictor
    return manager, executor, registries, clock


async def test_a_decision_is_declared_and_stays_while_the_strategy_waits() -> None:
    update = DesiredSetting(SHARES, 2)
    manager, executor, _, clock = manager_of(Scripted("a", [QoSDecision((update,), note="two"), None]))
    await manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "two"})
    clock["now"] = 1.0
    await manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "waiting for figures"})


async def test_a_strategy_that_raises_is_counted_and_the_others_continue() -> None:
    good = Scripted("good", [QoSDecision(), QoSDecision()])
    manager, executor, registries, clock = manager_of(Scripted("bad", [ValueError("no"), QoSDecision()]), good)
    await manager.round()
    assert set(executor.declared) == {"good"}
    labels = {"node": "n", "owner": "bad", "resource": "", "kind": "raised"}
    assert registries.internal.get_sample_value("koordlet_resource_update_problems_total", labels) == 1
    clock["now"] = 1.0
    await manager.round()
    assert set(executor.declared) == {"good", "bad"}


async def test_strategies_have_intervals_and_writes_continue_without_a_node() -> None:
    strategy = Scripted("slow", [QoSDecision()])
    manager, executor, _, clock = manager_of(strategy, interval=10.0)
    for now in (0.0, 5.0):
        clock["now"] = now
        await manager.round()
    clock["view"] = None
    await manager.round()
    assert strategy.answers == [] and executor.passes == 3


async def test_figures_of_decisions_are_exported() -> None:
    decided = QoSDecision(figures={"be_suppress_cpu_cores": {("cpuset",): 3.0}})
    manager, _, registries, _ = manager_of(Scripted("a", [decided]))
    await manager.round()
    labels = {"node": "n", "type": "cpuset"}
    assert registries.internal.get_sample_value("koordlet_be_suppress_cpu_cores", labels) == 3.0


async def test_victims_are_evicted_and_the_strategy_is_notified() -> None:
    task = EvictionTask("F", "podUsed", {"cpu": 1}, (), {})
    strategy = Scripted("evict", [QoSDecision(evictions=(task,)), None, QoSDecision()])
    manager, _, _, clock = manager_of(strategy)
    for now in (0.0, 1.0, 2.0):
        clock["now"] = now
        await manager.round()
    assert clock["evictor"].worked == [(task,)]
    assert strategy.cooled == [0.0]


async def test_strategies_that_follow_pods_follow_the_nodes_rules_at_once() -> None:
    follower = Scripted("pods", [QoSDecision(note=note) for note in ("first", "pools", "ratio")], follows_pods=True)
    other = Scripted("other", [QoSDecision()])
    manager, _, _, clock = manager_of(follower, other, interval=60.0)
    rules, notes, view = CPURules(shared={0: CPUSet({1})}), [], clock["view"]
    known = [replace(view, cpu_rules=rules, normalization=ratio) for ratio in (1.0, 1.2, 1.2)]
    for node_view in (view, view, *known):
        clock["view"] = node_view
        await manager.round()
        notes.append(manager.notes["pods"])
        clock["now"] += 1
    assert notes == ["first", "first", "pools", "ratio", "ratio"]


async def test_a_waiting_strategy_decides_again_in_the_next_round() -> None:
    manager, executor, _, clock = manager_of(Scripted("a", [None, QoSDecision(note="now")]), interval=60.0)
    await manager.round()
    assert executor.declared == {}
    clock["now"] = 1.0
    await manager.round()
    assert manager.notes == {"a": "now"}


async def test_an_outdated_strategy_decides_again_in_the_same_round() -> None:
    """It would be due in a minute; the strategy before it decides now."""
    follower = Scripted("follower", [QoSDecision(note=str(number)) for number in range(3)])

    class Leader(Scripted):
        def decide(self, view: Any) -> QoSDecision | None:
            follower.news = view.now == 1.0
            return QoSDecision()

    manager, _, _, clock = manager_of(Leader("leader", []), follower, interval=60.0)
    manager._slots[0].interval = 1.0
    notes = []
    for now in (0.0, 1.0, 2.0):
        clock["now"] = now
        await manager.round()
        notes.append(manager.notes["follower"])
    assert notes == ["0", "1", "1"]
