"""Objects that depend on each other, through the executor: for any desired settings in any order, the kernel accepts
every step, and in the end no object is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import RANKS, DesiredSetting, Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.write import TargetBusy, WriteRefused
from tests.koordlet.resourceexecutor.conftest import Recorder

NEEDS = {
    "tc.total": "tc.qdisc", "tc.class": "tc.total", "tc.sources": "tc.class", "iptables": "ipset",
    "resctrl.group": "resctrl.mount", "resctrl.L3": "resctrl.group", "resctrl.tasks": "resctrl.group",
}  # fmt: skip
"""The objects that an object needs, with the same name."""
GONE_WITHOUT = {"tc.total", "tc.class", "tc.sources", "resctrl.group", "resctrl.L3", "resctrl.tasks"}
"""Objects that cannot be read while the object that they need does not exist."""


class Objects:
    """Creates no object whose needed objects do not exist, and removes no object that another one needs. Removing a
    resctrl group removes its lines."""

    resources = tuple(RANKS)

    def __init__(self) -> None:
        self.objects: dict[Setting, Value] = {}

    @staticmethod
    def base(setting: Setting) -> Setting | None:
        needs = NEEDS.get(setting.resource)
        return None if needs is None else Setting(needs, device="" if needs == "resctrl.mount" else setting.device)

    def check(self, setting: Setting, value: Value) -> Value:
        return value

    def read(self, setting: Setting) -> Value | None:
        return None if self.gone(setting) else self.objects.get(setting, ABSENT)

    def gone(self, setting: Setting) -> bool:
        base = self.base(setting)
        return setting.resource in GONE_WITHOUT and base is not None and base not in self.objects

    def write(self, setting: Setting, value: Value) -> None:
        base = self.base(setting)
        above = [other for other in self.objects if self.base(other) == setting]
        if value != ABSENT and base is not None and base not in self.objects:
            raise WriteRefused(setting.label, str(value), 22, "nothing to stand on")
        if value == ABSENT and setting.resource == "resctrl.group":
            for other in above:
                del self.objects[other]
        elif value == ABSENT and above:
            raise TargetBusy(setting.label, str(value), 16, f"{above[0].label} stands on it")
        if value == ABSENT:
            self.objects.pop(setting, None)
        else:
            self.objects[setting] = value

    def holds(self, setting: Setting, value: Value) -> bool | None:
        return None

    def period(self, setting: Setting) -> float | None:
        return None


def whole(setting: Setting) -> list[Setting]:
    """An object and all objects that it needs."""
    base = Objects.base(setting)
    return [setting, *(whole(base) if base is not None else ())]


names = st.sampled_from(["a", "b"])
objects = st.builds(
    lambda resource, name: Setting(resource, device="" if resource == "resctrl.mount" else name),
    st.sampled_from(sorted({*NEEDS, *NEEDS.values()})), names,
)  # fmt: skip
desired = st.dictionaries(objects, st.sampled_from(["1", "2"]), max_size=6)


@given(st.lists(desired, min_size=1, max_size=5), st.booleans())
def test_every_set_of_desired_settings_is_reached_and_fully_restored(
    rounds: list[dict[Setting, str]], killed: bool
) -> None:
    store, ledger, now = Objects(), Ledger(None, "boot"), [0.0]

    def fresh() -> Executor:
        files = KernelFiles(None, None, [store])  # type: ignore[arg-type]
        return Executor(files, ledger, Recorder(), Registries(), clock=lambda: now[0])

    executor = fresh()
    for values in rounds:
        expected = {base: values.get(base, "1") for setting in values for base in whole(setting)}
        executor.declare("x", [DesiredSetting(setting, value) for setting, value in expected.items()])
        now[0] += 100
        result = executor.apply()
        assert (result.problems, result.waiting) == ({}, [])
        assert store.objects == expected
        if killed:
            executor = fresh()
    executor.declare("x", ())
    assert executor.apply().problems == {}
    assert store.objects == {}
    assert ledger.originals == {}
