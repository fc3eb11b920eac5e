"""Laws of the executor over any history: declarations, pods that come and go, a kubelet that writes too, memory in use,
kills between any two writes. The kernel is a model that refuses what the real one refuses.

Whatever happened, after one undisturbed pass in which every owner has spoken: every wish holds that the kernel can
take, no write was one that it refuses (but a memory limit below what is used), and what nobody wishes is as it was
before us. At the end all is. Until everybody has spoken nothing is given back, and wishes may have to wait for that.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.write import TargetBusy, WriteRefused
from tests.koordlet.resourceexecutor.conftest import CPUS, IDLE, MEMORY, QUOTA, SHARES, ModelKernel, Recorder, desired

TREE = ("q", "q/a", "q/b", "q/a/x", "q/a/y", "q/b/z")
OWNERS = {"suppress": (CPUS, QUOTA), "hooks": (SHARES, IDLE, MEMORY)}
RESOURCES = (CPUS, QUOTA, SHARES, IDLE, MEMORY)
LONG = 1000.0
"""Seconds after which the executor looks at everything again."""


class Killed(BaseException):
    """kill -9: nothing of ours runs any more."""


class Mortal(ModelKernel):
    """Kills its caller before one of the next writes, and remembers what it refused."""

    lives: int | None = None

    def write(self, setting: Setting, value: Value) -> None:
        if self.lives is not None:
            self.lives -= 1
            if self.lives < 0:
                self.lives = None
                raise Killed
        try:
            super().write(setting, value)
        except (WriteRefused, TargetBusy):
            self.refused.append((setting, value))
            raise


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def nested(data: st.DataObject, paths: list[str], some: set[str]) -> dict[Setting, Value]:
    """Quotas and CPU sets for some of the groups, which the kernel accepts whatever the others hold."""
    wanted: dict[Setting, Value] = {}
    cpus: dict[str, CPUSet] = {"": CPUSet(range(8))}
    bounds: dict[str, float] = {"": float("inf")}
    for path in paths:
        cpus[path], bounds[path] = cpus[parent_of(path)], bounds[parent_of(path)]
        if path not in some:
            continue
        cpus[path] = CPUSet(data.draw(st.sets(st.sampled_from(sorted(cpus[path])), min_size=1), label=f"{path} cpus"))
        wanted[Setting(CPUS, path)] = str(cpus[path])
        quota = data.draw(st.one_of(st.just(-1), st.integers(1_000, 800_000)), label=f"{path} quota")
        wanted[Setting(QUOTA, path)] = quota if quota == -1 else int(min(quota, bounds[path]))
        bounds[path] = bounds[path] if quota == -1 else min(quota, bounds[path])
    return wanted


class Node(RuleBasedStateMachine):
    """A node's settings and one executor after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="koord-laws-", dir="/dev/shm"))
        self.kernel = Mortal()
        self.kernel.mkdir(*TREE)
        self.before = dict(self.kernel.values)
        self.paths = list(TREE)
        self.now, self.made = 0.0, 0
        self.wanted: dict[str, dict[Setting, Value]] = {}
        self.executor: Executor
        self.clean = False
        """Whether an undisturbed pass was the last thing that happened."""

    @initialize()
    def start(self) -> None:
        ledger, said = Ledger.load(self.folder / "ledger.json", "boot")
        assert said == ""
        made: Any = Executor(
            self.kernel, ledger, Recorder(), Registries(), expected=tuple(OWNERS), clock=lambda: self.now,
        )  # type: ignore[arg-type]  # fmt: skip
        self.executor, self.wanted, self.clean = made, {}, False

    @rule(data=st.data())
    def suppress(self, data: st.DataObject) -> None:
        """CPU sets and quotas of some groups."""
        some = data.draw(st.sets(st.sampled_from(self.paths)))
        self._declare("suppress", nested(data, self.paths, some))

    @rule(data=st.data())
    def hooks(self, data: st.DataObject) -> None:
        """Weights, idleness and memory limits of some groups."""
        wanted: dict[Setting, Value] = {}
        for path in data.draw(st.sets(st.sampled_from(self.paths))):
            for resource, values in ((SHARES, (2, 512)), (IDLE, (0, 1)), (MEMORY, (1 << 20, 1 << 24, -1))):
                value = data.draw(st.sampled_from([None, *values]), label=f"{path} {resource}")
                if value is not None:
                    wanted[Setting(resource, path)] = value
        self._declare("hooks", wanted)

    def _declare(self, owner: str, wanted: dict[Setting, Value]) -> None:
        self.executor.declare(owner, desired(wanted))
        self.wanted[owner], self.clean = wanted, False

    @rule(parent=st.sampled_from(TREE))
    def pod_comes(self, parent: str) -> None:
        path = f"{parent}/n{self.made}"
        self.made += 1
        self.kernel.mkdir(path, cpus=str(self.kernel.values[Setting(CPUS, parent)]))
        self.paths.append(path)
        self.before |= {setting: value for setting, value in self.kernel.values.items() if setting.cgroup_dir == path}
        self.clean = False

    @precondition(lambda self: len(self.paths) > len(TREE))
    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.paths[len(TREE) :]))
        self.paths.remove(path)
        self.kernel.rmdir(path)
        self.before = {setting: value for setting, value in self.before.items() if setting.cgroup_dir != path}

    @rule(path=st.sampled_from(TREE), used=st.sampled_from([0, 1 << 22]))
    def memory_is_used(self, path: str, used: int) -> None:
        self.kernel.used[path] = used
        self.clean = False

    @rule(lives=st.integers(0, 12))
    def killed_while_writing(self, lives: int) -> None:
        self.kernel.lives = lives
        try:
            self._pass()
        except Killed:
            pass
        self.kernel.lives = None
        self.start()

    @rule()
    def killed(self) -> None:
        self.start()

    @rule()
    def round(self) -> None:
        self._pass()
        self.clean = self._complete

    @property
    def _complete(self) -> bool:
        return len(self.wanted) == len(OWNERS)

    def _pass(self) -> None:
        self.now += LONG
        self.kernel.refused.clear()
        problems = self.executor.apply().problems
        if self._complete:
            assert all(setting.resource == MEMORY for setting in problems), problems
            assert all(setting.resource == MEMORY for setting, _ in self.kernel.refused), self.kernel.refused

    @precondition(lambda self: self.clean)
    @invariant()
    def wishes_hold(self) -> None:
        for wanted in self.wanted.values():
            for setting, value in wanted.items():
                if setting in self.kernel.values and not self._excused(setting, value):
                    assert self.kernel.values[setting] == value, setting

    @precondition(lambda self: self.clean)
    @invariant()
    def the_rest_is_as_it_was(self) -> None:
        for setting, value in self.before.items():
            if any(setting in wanted for wanted in self.wanted.values()) or self._excused(setting, value):
                continue
            above = self._cpus_above(setting)
            assert self.kernel.values[setting] == (value if above is None else above), setting

    def _excused(self, setting: Setting, value: Value) -> bool:
        """An idle group has no weight, and memory in use can't be taken away."""
        if setting.resource == MEMORY:
            return value != -1 and self.kernel.used.get(setting.cgroup_dir, 0) > int(value)
        return setting.resource == SHARES and self.kernel.values[Setting(IDLE, setting.cgroup_dir)] == 1

    def _cpus_above(self, setting: Setting) -> Value | None:
        """A group that nobody names has its nearest wished ancestor's CPUs."""
        path = setting.cgroup_dir
        while setting.resource == CPUS and (path := parent_of(path)):
            if (found := self.wanted["suppress"].get(Setting(CPUS, path))) is not None:
                return found
        return None

    def teardown(self) -> None:
        try:
            self.kernel.used.clear()
            self.now += LONG
            assert self.executor.restore_everything().problems == {}
            assert self.kernel.values == self.before
            assert self.executor.originals == {}
        finally:
            shutil.rmtree(self.folder)


TestAnyHistory = Node.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
