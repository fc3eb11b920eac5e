"""Laws of the executor for any history: declarations, pods that start and end, writes of the kubelet, memory in use,
kills between any two writes. The kernel is a model with the real kernel's refusals.

After any history and one undisturbed pass in which every owner has declared its settings: every desired setting that
the kernel accepts is in force, no write was refused (except a memory limit below the memory in use), and all other
settings have their original values. At the end all have. Until every owner has declared its settings, nothing is
restored, and desired settings may have to wait for that.
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
from tests.present import present

TREE = ("q", "q/a", "q/b", "q/a/x", "q/a/y", "q/b/z")
OWNERS = {"suppress": (CPUS, QUOTA), "hooks": (SHARES, IDLE, MEMORY)}
RESOURCES = (CPUS, QUOTA, SHARES, IDLE, MEMORY)
LONG = 1000.0
"""Interval in seconds of the executor's check of all settings."""


class Killed(BaseException):
    """kill -9 of koordlet."""


class Mortal(ModelKernel):
    """Kills its caller before one of the next writes, and records refused writes."""

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
    """Quotas and CPU sets for some groups that the kernel accepts independent of the other groups."""
    values: dict[Setting, Value] = {}
    cpus: dict[str, CPUSet] = {"": CPUSet(range(8))}
    bounds: dict[str, float] = {"": float("inf")}
    for path in paths:
        cpus[path], bounds[path] = cpus[parent_of(path)], bounds[parent_of(path)]
        if path not in some:
            continue
        cpus[path] = CPUSet(data.draw(st.sets(st.sampled_from(sorted(cpus[path])), min_size=1), label=f"{path} cpus"))
        values[Setting(CPUS, path)] = str(cpus[path])
        quota = data.draw(st.one_of(st.just(-1), st.integers(1_000, 800_000)), label=f"{path} quota")
        values[Setting(QUOTA, path)] = quota if quota == -1 else int(min(quota, bounds[path]))
        bounds[path] = bounds[path] if quota == -1 else min(quota, bounds[path])
    return values


class Node(RuleBasedStateMachine):
    """A node's settings and a sequence of executors."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="koord-laws-", dir="/dev/shm"))
        self.kernel = Mortal()
        self.kernel.mkdir(*TREE)
        self.before = dict(self.kernel.values)
        self.paths = list(TREE)
        self.now, self.made = 0.0, 0
        self.declared: dict[str, dict[Setting, Value]] = {}
        self.executor: Executor
        self.clean = False
        """Whether the last operation was an undisturbed pass."""

    @initialize()
    def start(self) -> None:
        ledger, problem = Ledger.load(self.folder / "ledger.json", "boot")
        assert problem == ""
        executor: Any = Executor(
            self.kernel, ledger, Recorder(), Registries(), expected=tuple(OWNERS), clock=lambda: self.now,  # type: ignore[arg-type]
        )  # fmt: skip
        self.executor, self.declared, self.clean = executor, {}, False

    @rule(data=st.data())
    def suppress(self, data: st.DataObject) -> None:
        """CPU sets and quotas of some groups."""
        some = data.draw(st.sets(st.sampled_from(self.paths)))
        self._declare("suppress", nested(data, self.paths, some))

    @rule(data=st.data())
    def hooks(self, data: st.DataObject) -> None:
        """Weights, idleness and memory limits of some groups."""
        values: dict[Setting, Value] = {}
        for path in data.draw(st.sets(st.sampled_from(self.paths))):
            for resource, choices in ((SHARES, (2, 512)), (IDLE, (0, 1)), (MEMORY, (1 << 20, 1 << 24, -1))):
                value = data.draw(st.sampled_from([None, *choices]), label=f"{path} {resource}")
                if value is not None:
                    values[Setting(resource, path)] = value
        self._declare("hooks", values)

    def _declare(self, owner: str, values: dict[Setting, Value]) -> None:
        self.executor.declare(owner, desired(values))
        self.declared[owner], self.clean = values, False

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
        return len(self.declared) == len(OWNERS)

    def _pass(self) -> None:
        self.now += LONG
        self.kernel.refused.clear()
        problems = self.executor.apply().problems
        if self._complete:
            assert all(setting.resource == MEMORY for setting in problems), problems
            assert all(setting.resource == MEMORY for setting, _ in self.kernel.refused), self.kernel.refused

    @precondition(lambda self: self.clean)
    @invariant()
    def desired_settings_hold(self) -> None:
        for values in self.declared.values():
            for setting, value in values.items():
                if setting in self.kernel.values and not self._excused(setting, value):
                    assert self.kernel.values[setting] == value, setting

    @precondition(lambda self: self.clean)
    @invariant()
    def the_rest_is_as_it_was(self) -> None:
        for setting, value in self.before.items():
            if any(setting in values for values in self.declared.values()) or self._excused(setting, value):
                continue
            above = self._cpus_above(setting)
            assert self.kernel.values[setting] == (value if above is None else above), setting

    def _excused(self, setting: Setting, value: Value) -> bool:
        """An idle group has no weight, and a memory limit cannot be below the memory in use."""
        if setting.resource == MEMORY:
            return value != -1 and self.kernel.used.get(present(setting.cgroup_dir), 0) > int(value)
        return setting.resource == SHARES and self.kernel.values[Setting(IDLE, setting.cgroup_dir)] == 1

    def _cpus_above(self, setting: Setting) -> Value | None:
        """A group without a setting has the CPUs of its nearest ancestor with a desired CPU set."""
        path = setting.cgroup_dir
        while setting.resource == CPUS and (path := parent_of(present(path))):
            if (cpus := self.declared["suppress"].get(Setting(CPUS, path))) is not None:
                return cpus
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
