"""A model kernel with the real kernel's refusals, and an executor that writes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import DesiredSetting, Setting, Value
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.write import TargetBusy, TargetGone, WriteRefused
from tests.present import present

QUOTA, CPUS, SHARES, IDLE = "cpu.cfs_quota_us", "cpuset.cpus", "cpu.shares", "cpu.idle"
MEMORY = "memory.limit_in_bytes"
IDLE_SHARES, DEFAULT_SHARES = 3, 1024
INFINITE = float("inf")


@dataclass
class ModelKernel:
    """The rules of cgroup v1: quotas bounded by the nearest limited ancestor, nested CPU sets, no weight while idle, no
    memory limit below the memory in use."""

    values: dict[Setting, Value] = field(default_factory=dict)
    log: list[tuple[Setting, Value]] = field(default_factory=list)
    reads: int = 0
    broken: dict[Setting, Exception] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """Bytes that cannot be reclaimed, by directory."""
    refused: list[tuple[Setting, Value]] = field(default_factory=list)

    def mkdir(self, *directories: str, cpus: str = "0-7") -> None:
        for directory in directories:
            self.values[Setting(QUOTA, directory)] = -1
            self.values[Setting(CPUS, directory)] = cpus
            self.values[Setting(SHARES, directory)] = DEFAULT_SHARES
            self.values[Setting(IDLE, directory)] = 0
            self.values[Setting(MEMORY, directory)] = -1

    def rmdir(self, directory: str) -> None:
        for setting in [setting for setting in self.values if setting.cgroup_dir == directory]:
            del self.values[setting]

    def check(self, setting: Setting, value: Value) -> Value:
        return str(CPUSet.parse(str(value))) if setting.resource == CPUS else value

    def read(self, setting: Setting) -> Value | None:
        self.reads += 1
        return self.values.get(setting)

    def gone(self, setting: Setting) -> bool:
        return not any(other.cgroup_dir == setting.cgroup_dir for other in self.values)

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        return None

    def period(self, setting: Setting) -> float | None:
        return None

    def covers_children(self, resource: str) -> bool:
        return resource == CPUS

    def child_settings(self, setting: Setting) -> list[Setting]:
        return [
            other
            for other in self.values
            if other.resource == setting.resource and present(other.cgroup_dir).rpartition("/")[0] == setting.cgroup_dir
        ]

    def write(self, setting: Setting, value: Value) -> None:
        if setting not in self.values:
            raise TargetGone(setting.label, str(value), 2, "does not exist")
        if setting in self.broken:
            raise self.broken[setting]
        if setting.resource in (QUOTA, CPUS) and not self._nested(setting, value):
            raise WriteRefused(setting.label, str(value), 22, "value not acceptable here")
        if setting.resource == MEMORY and value != -1 and int(value) < self.used.get(setting.cgroup_dir or "", 0):
            raise TargetBusy(setting.label, str(value), 16, "in use")
        weight = Setting(SHARES, setting.cgroup_dir)
        if setting.resource == SHARES and self.values[Setting(IDLE, setting.cgroup_dir)] == 1:
            raise WriteRefused(setting.label, str(value), 22, "value not acceptable here")
        if setting.resource == IDLE and value != self.values[setting]:
            self.values[weight] = IDLE_SHARES if value == 1 else DEFAULT_SHARES
        self.values[setting] = value
        self.log.append((setting, value))

    def _nested(self, setting: Setting, value: Value) -> bool:
        if setting.resource == QUOTA:
            return self._schedulable({**self.values, setting: value})
        assert setting.cgroup_dir is not None
        parent = setting.cgroup_dir.rpartition("/")[0]
        above = self.values.get(Setting(setting.resource, parent)) if parent else None
        own = CPUSet.parse(str(value))
        within = above is None or own <= CPUSet.parse(str(above))
        return (
            bool(own)
            and within
            and all(CPUSet.parse(str(self.values[child])) <= own for child in self.child_settings(setting))
        )

    def _schedulable(self, values: dict[Setting, Value]) -> bool:
        """Whether no quota exceeds that of the nearest ancestor with a quota."""
        bounds: dict[str, float] = {}
        for directory, quota in sorted((s.cgroup_dir, held) for s, held in values.items() if s.resource == QUOTA):
            assert directory is not None
            bound = bounds.get(directory.rpartition("/")[0], INFINITE)
            if quota != -1 and quota > bound:  # type: ignore[operator]
                return False
            bounds[directory] = bound if quota == -1 else float(quota)
        return True


class Recorder:
    """An auditor that keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def enabled(self, level: int) -> bool:
        return True

    def record(self, level: int, about: Any, reason: str, message: str = "", *, details: Any = None) -> None:
        self.events.append((level, about, reason, message, details))


@pytest.fixture
def kernel() -> ModelKernel:
    model = ModelKernel()
    model.mkdir("kubepods", "kubepods/besteffort", "kubepods/besteffort/pod1", "kubepods/besteffort/pod1/c1")
    return model


@pytest.fixture
def auditor() -> Recorder:
    return Recorder()


@pytest.fixture
def registries() -> Registries:
    registries = Registries()
    registries.node = "n"
    return registries


@pytest.fixture
def make(kernel: ModelKernel, auditor: Recorder, registries: Registries) -> Callable[..., Executor]:
    def executor(ledger: Ledger | None = None, **options: Any) -> Executor:
        return Executor(kernel, ledger or Ledger(None, "boot"), auditor, Registries(), **options)  # type: ignore[arg-type]

    return executor


def desired(values: dict[Setting, Value]) -> Iterable[DesiredSetting]:
    return [DesiredSetting(setting, value) for setting, value in values.items()]


def ledger_at(path: Path) -> Ledger:
    ledger, message = Ledger.load(path, "boot")
    assert message == ""
    return ledger
