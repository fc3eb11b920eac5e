"""The manager: due strategies decide over one picture, what raises costs only itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.metrics import Registries
from koordlet.qosmanager.manager import QoSManager
from koordlet.qosmanager.strategy import Decision
from koordlet.resourceexecutor import PassResult, Setting, Update

from .conftest import make_view

SHARES = Setting("cpu.shares", "kubepods")


@dataclass
class Executor:
    declared: dict[str, tuple[Update, ...]] = field(default_factory=dict)
    passes: int = 0

    def declare(self, owner: str, updates: tuple[Update, ...]) -> None:
        self.declared[owner] = updates

    def apply(self) -> PassResult:
        self.passes += 1
        return PassResult()


@dataclass
class Scripted:
    name: str
    answers: list[Any]
    gate: str = ""

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

    made = QoSManager([(one, interval) for one in strategies], look, executor, registries)  # type: ignore[arg-type]
    return made, executor, registries, clock


def test_a_decision_is_declared_and_stands_while_the_strategy_waits() -> None:
    update = Update(SHARES, 2)
    manager, executor, _, clock = manager_of(Scripted("a", [Decision((update,), note="two"), None]))
    manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "two"})
    clock["now"] = 1.0
    manager.round()
    assert (executor.declared, manager.notes) == ({"a": (update,)}, {"a": "waiting for figures"})


def test_one_that_raises_is_counted_and_the_others_go_on() -> None:
    good = Scripted("good", [Decision(), Decision()])
    manager, executor, registries, clock = manager_of(Scripted("bad", [ValueError("no"), Decision()]), good)
    manager.round()
    assert set(executor.declared) == {"good"}
    labels = {"node": "n", "owner": "bad", "resource": "", "kind": "raised"}
    assert registries.internal.get_sample_value("koordlet_resource_update_problems_total", labels) == 1
    clock["now"] = 1.0
    manager.round()
    assert set(executor.declared) == {"good", "bad"}


def test_each_strategy_has_its_interval_and_writes_go_on_without_a_node() -> None:
    strategy = Scripted("slow", [Decision()])
    manager, executor, _, clock = manager_of(strategy, interval=10.0)
    for now in (0.0, 5.0):
        clock["now"] = now
        manager.round()
    clock["view"] = None
    manager.round()
    assert strategy.answers == [] and executor.passes == 3


def test_figures_are_served() -> None:
    decided = Decision(figures={"be_suppress_cpu_cores": {("cpuset",): 3.0}})
    manager, _, registries, _ = manager_of(Scripted("a", [decided]))
    manager.round()
    found = registries.internal.get_sample_value("koordlet_be_suppress_cpu_cores", {"node": "n", "type": "cpuset"})
    assert found == 3.0
