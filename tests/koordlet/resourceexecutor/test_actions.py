"""One-shot writes: outcomes by the kernel's result, bounded rounds, audit events, no entry in the ledger."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor import Action, Setting, actions
from koordlet.resourceexecutor.actions import ActionOutcome, Actor
from koordlet.system.errors import InvalidValue
from koordlet.system.write import TargetBusy, TargetGone, WriteDenied, WriteError, WriteRefused, WriteUnsupported
from tests.koordlet.resourceexecutor.conftest import Recorder

RECLAIM, POD = "memory.reclaim", "kubepods/besteffort/pod1"


class Files:
    """Accepts or refuses writes; `exists`: whether the group still exists."""

    def __init__(self, error: Exception | None = None, *, exists: bool = True) -> None:
        self.error = error
        self.exists = exists
        self.written: list[Any] = []

    def check(self, setting: Setting, value: int | str) -> int:
        if not isinstance(value, int):
            raise InvalidValue(setting.resource, value, "not a number")
        return value

    def write(self, setting: Setting, value: int) -> None:
        if self.error is not None:
            raise self.error
        self.written.append((setting, value))

    def gone(self, setting: Setting) -> bool:
        return not self.exists


@pytest.fixture
def act(auditor: Recorder) -> Callable[..., tuple[dict[Setting, ActionOutcome], Registries]]:
    registries = Registries()
    registries.node = "n"

    def run(
        files: Files, *directories: str, value: int | str = 1 << 20
    ) -> tuple[dict[Setting, ActionOutcome], Registries]:
        actions = [Action(Setting(RECLAIM, directory), value, "Why") for directory in directories or (POD,)]
        return Actor(files, auditor, registries).act("owner", actions), registries  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("error", "exists", "outcome", "audited"),
    [
        (None, True, ActionOutcome.DONE, True),
        (TargetBusy("f", "1", errno.EAGAIN, "in use"), True, ActionOutcome.PARTLY, True),
        (TargetBusy("f", "1", errno.EBUSY, "in use"), True, ActionOutcome.FAILED, True),
        (WriteRefused("f", "1", errno.EINVAL, "no"), True, ActionOutcome.FAILED, False),
        (WriteDenied("f", "1", errno.EROFS, "no"), True, ActionOutcome.FAILED, False),
        (WriteUnsupported("f", "1", errno.EOPNOTSUPP, "no"), True, ActionOutcome.FAILED, False),
        (TargetGone("f", "1", errno.ENOENT, "no"), False, ActionOutcome.GONE, False),
        (TargetGone("f", "1", errno.ENOENT, "no"), True, ActionOutcome.FAILED, False),
    ],
    ids=["done", "partly", "busy", "invalid", "read-only", "unsupported", "group-ended", "no-such-file"],
)
def test_outcomes(
    act: Callable[..., tuple[dict[Setting, ActionOutcome], Registries]],
    auditor: Recorder,
    error: WriteError | None,
    exists: bool,
    outcome: ActionOutcome,
    audited: bool,
) -> None:
    files = Files(error, exists=exists)
    outcomes, registries = act(files)
    assert outcomes == {Setting(RECLAIM, POD): outcome}
    assert bool(auditor.events) == audited
    if audited:
        level, about, reason, message, details = auditor.events[0]
        assert (level, about.name, reason, details) == (3, POD, "Why", {"owner": "owner"})
        assert message == f"{POD}/{RECLAIM} {1 << 20}: {outcome.value}"
    labels = {"node": "n", "owner": "owner", "resource": RECLAIM, "outcome": outcome.value}
    assert registries.internal.get_sample_value("koordlet_resource_actions_total", labels) == 1


def test_an_invalid_value_is_not_written(act: Callable[..., tuple[dict[Setting, ActionOutcome], Registries]]) -> None:
    files = Files()
    assert act(files, value="much")[0] == {Setting(RECLAIM, POD): ActionOutcome.FAILED}
    assert files.written == []


def test_a_round_is_bounded_and_the_rest_is_postponed(
    act: Callable[..., tuple[dict[Setting, ActionOutcome], Registries]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.001, 0.019, 0.03, 0.05])
    monkeypatch.setattr(actions.time, "perf_counter", lambda: next(clock))  # type: ignore[attr-defined]
    files = Files()
    outcomes, _ = act(files, "a", "b", "c", "d")
    assert list(outcomes.values()) == [ActionOutcome.DONE, ActionOutcome.DONE, ActionOutcome.LATER, ActionOutcome.LATER]
    assert len(files.written) == 2
