"""The manager: due strategies decide over one picture, what raises costs only itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.eviction import Task
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.strategy import Decision
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
    gate: str = ""
    follows_pods: bool = False
    cooled: list[float] = field(default_factory=list)
    news: bool = False

    def overtaken(self) -> bool:
        return self.news

    def evicted(self, now: float) -> None:
        self.cooled.append(now)

    def decide(self, view: Any) -> Decision | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def manager_of(*strategies: Scripted, interval: float = 1.0):
    executor, registries = Executor(), Registries()
    registries.node = "n"
    clock = {"now": 0.0, "view": make_view()}

    def look() -> Any:
        return clock["view"] and replace(clock["view"], now=clock["now"])

    evictor = Evictor()
    made = QoSManager([(one, interval) for one in strategies], look, executor, evictor, registries)  # type: ignore[arg-type]
    clock["evictor"] = evictor
    return made, executor, registries, clock


async def test_a_decision_is_declared_and_stands_while_the_strategy_waits() -> None:
    update = DesiredSetting(SHARES, 2)
    manager, executor, _, clock = manager_of(Scripted("a", [Decision((update,), note="two"), None]))
    await manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "two"})
    clock["now"] = 1.0
    await manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "waiting for figures"})


async def test_one_that_raises_is_counted_and_the_others_go_on() -> None:
    good = Scripted("good", [Decision(), Decision()])
    manager, executor, registries, clock = manager_of(Scripted("bad", [ValueError("no"), Decision()]), good)
    await manager.round()
    assert set(executor.declared) == {"good"}
    labels = {"node": "n", "owner": "bad", "resource": "", "kind": "raised"}
    assert registries.internal.get_sample_value("koordlet_resource_update_problems_total", labels) == 1
    clock["now"] = 1.0
    await manager.round()
    assert set(executor.declared) == {"good", "bad"}


async def test_each_strategy_has_its_interval_and_writes_go_on_without_a_node() -> None:
    strategy = Scripted("slow", [Decision()])
    manager, executor, _, clock = manager_of(strategy, interval=10.0)
    for now in (0.0, 5.0):
        clock["now"] = now
        await manager.round()
    clock["view"] = None
    await manager.round()
    assert strategy.answers == [] and executor.passes == 3


async def test_figures_are_served() -> None:
    decided = Decision(figures={"be_suppress_cpu_cores": {("cpuset",): 3.0}})
    manager, _, registries, _ = manager_of(Scripted("a", [decided]))
    await manager.round()
    found = registries.internal.get_sample_value("koordlet_be_suppress_cpu_cores", {"node": "n", "type": "cpuset"})
    assert found == 3.0


async def test_victims_of_a_decision_go_and_the_strategy_cools_down() -> None:
    task = Task("F", "podUsed", {"cpu": 1}, (), {})
    strategy = Scripted("evict", [Decision(evictions=(task,)), None, Decision()])
    manager, _, _, clock = manager_of(strategy)
    for now in (0.0, 1.0, 2.0):
        clock["now"] = now
        await manager.round()
    assert clock["evictor"].worked == [(task,)]
    assert strategy.cooled == [0.0]


async def test_what_pods_get_follows_the_nodes_rules_at_once() -> None:
    follower = Scripted("pods", [Decision(note=note) for note in ("first", "pools", "ratio")], follows_pods=True)
    other = Scripted("other", [Decision()])
    manager, _, _, clock = manager_of(follower, other, interval=60.0)
    rules, notes, view = CPURules(shared={0: CPUSet({1})}), [], clock["view"]
    known = [replace(view, cpu_rules=rules, normalization=ratio) for ratio in (1.0, 1.2, 1.2)]
    for seen in (view, view, *known):
        clock["view"] = seen
        await manager.round()
        notes.append(manager.notes["pods"])
        clock["now"] += 1
    assert notes == ["first", "first", "pools", "ratio", "ratio"]


async def test_one_that_waits_is_asked_again_at_the_next_round() -> None:
    manager, executor, _, clock = manager_of(Scripted("a", [None, Decision(note="now")]), interval=60.0)
    await manager.round()
    assert executor.declared == {}
    clock["now"] = 1.0
    await manager.round()
    assert manager.notes == {"a": "now"}


async def test_one_that_another_strategys_decision_overtakes_is_asked_in_the_same_round() -> None:
    """Its turn would come in a minute; the one before it decides now."""
    follower = Scripted("follower", [Decision(note=str(number)) for number in range(3)])

    class Leader(Scripted):
        def decide(self, view: Any) -> Decision | None:
            follower.news = view.now == 1.0
            return Decision()

    manager, _, _, clock = manager_of(Leader("leader", []), follower, interval=60.0)
    manager._slots[0].interval = 1.0
    said = []
    for now in (0.0, 1.0, 2.0):
        clock["now"] = now
        await manager.round()
        said.append(manager.notes["follower"])
    assert said == ["0", "1", "1"]
