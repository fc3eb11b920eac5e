"""Objects that build on each other, through the executor: whatever is wanted in whatever order of wishes, no step is
one that the kernel refuses, and in the end nothing is left."""

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
"""Object -> what it stands on, by the same name."""
GONE_WITHOUT = {"tc.total", "tc.class", "tc.sources", "resctrl.group", "resctrl.L3", "resctrl.tasks"}
"""Objects that can't even be looked for while that is not there."""


class Objects:
    """Makes nothing that has nothing to stand on, removes nothing that something stands on. A removed resctrl group
    takes its lines along."""

    resources = tuple(RANKS)

    def __init__(self) -> None:
        self.there: dict[Setting, Value] = {}

    @staticmethod
    def base(setting: Setting) -> Setting | None:
        needs = NEEDS.get(setting.resource)
        return None if needs is None else Setting(needs, device="" if needs == "resctrl.mount" else setting.device)

    def check(self, setting: Setting, value: Value) -> Value:
        return value

    def read(self, setting: Setting) -> Value | None:
        return None if self.gone(setting) else self.there.get(setting, ABSENT)

    def gone(self, setting: Setting) -> bool:
        base = self.base(setting)
        return setting.resource in GONE_WITHOUT and base is not None and base not in self.there

    def write(self, setting: Setting, value: Value) -> None:
        base = self.base(setting)
        above = [other for other in self.there if self.base(other) == setting]
        if value != ABSENT and base is not None and base not in self.there:
            raise WriteRefused(setting.label, str(value), 22, "nothing to stand on")
        if value == ABSENT and setting.resource == "resctrl.group":
            for other in above:
                del self.there[other]
        elif value == ABSENT and above:
            raise TargetBusy(setting.label, str(value), 16, f"{above[0].label} stands on it")
        if value == ABSENT:
            self.there.pop(setting, None)
        else:
            self.there[setting] = value

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        return None

    def period(self, setting: Setting) -> float | None:
        return None


def whole(setting: Setting) -> list[Setting]:
    """With all it stands on."""
    base = Objects.base(setting)
    return [setting, *(whole(base) if base is not None else ())]


names = st.sampled_from(["a", "b"])
objects = st.builds(
    lambda resource, name: Setting(resource, device="" if resource == "resctrl.mount" else name),
    st.sampled_from(sorted({*NEEDS, *NEEDS.values()})), names,
)  # fmt: skip
wishes = st.dictionaries(objects, st.sampled_from(["1", "2"]), max_size=6)


@given(st.lists(wishes, min_size=1, max_size=5), st.booleans())
def test_every_set_of_wishes_is_reached_and_left_without_a_trace(
    rounds: list[dict[Setting, str]], killed: bool
) -> None:
    store, ledger, now = Objects(), Ledger(None, "boot"), [0.0]

    def fresh() -> Executor:
        files = KernelFiles(None, None, [store])  # type: ignore[arg-type]
        return Executor(files, ledger, Recorder(), Registries(), clock=lambda: now[0])  # type: ignore[arg-type]

    executor = fresh()
    for asked in rounds:
        wanted = {base: asked.get(base, "1") for setting in asked for base in whole(setting)}
        executor.declare("x", [DesiredSetting(setting, value) for setting, value in wanted.items()])
        now[0] += 100
        result = executor.apply()
        assert (result.problems, result.waiting) == ({}, [])
        assert store.there == wanted
        if killed:
            executor = fresh()
    executor.declare("x", ())
    assert executor.apply().problems == {}
    assert store.there == {}
    assert ledger.originals == {}
