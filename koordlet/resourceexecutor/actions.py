"""One-shot writes: done once, audited and counted, never recorded or restored.

Such a write lasts as long as the kernel works on it (`memory.reclaim` reclaims), and the caller is the event loop. A
round therefore stops after `ROUND_SECONDS`; the remaining actions are for the next round. A write that the kernel did
in part (EAGAIN) and a group that ended meanwhile are outcomes, not errors.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from enum import StrEnum

from koordlet import audit
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.prometheus import Registries
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.settings import Action, Setting
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.write import TargetBusy, TargetGone, WriteError

log = get_logger(__name__)

ROUND_SECONDS = 0.02
AUDIT_LEVEL = 3


class ActionOutcome(StrEnum):
    """The result of an action."""

    DONE = "done"
    PARTLY = "partly"
    """The kernel did only a part of it."""
    GONE = "gone"
    FAILED = "failed"
    LATER = "later"
    """Not tried: the time of the round was used up."""


class Actor:
    """`act` is called in the manager's round, after the pass over the settings."""

    def __init__(self, files: KernelFiles, auditor: Auditor, registries: Registries) -> None:
        self._files = files
        self._auditor = auditor
        self._registries = registries

    def act(self, owner: str, actions: Iterable[Action]) -> dict[Setting, ActionOutcome]:
        """The outcome of each action, in the given order. A failure does not affect the other actions."""
        outcomes: dict[Setting, ActionOutcome] = {}
        end = time.perf_counter() + ROUND_SECONDS
        for action in actions:
            outcome = self._do(owner, action) if time.perf_counter() < end else ActionOutcome.LATER
            outcomes[action.setting] = outcome
            self._registries.count("resource_actions_total", owner, action.setting.resource, outcome.value)
        return outcomes

    def _do(self, owner: str, action: Action) -> ActionOutcome:
        setting = action.setting
        try:
            self._files.write(setting, self._files.check(setting, action.value))
        except TargetGone:
            return ActionOutcome.GONE if self._files.gone(setting) else ActionOutcome.FAILED
        except TargetBusy as error:
            outcome = ActionOutcome.PARTLY if error.errno == errno.EAGAIN else ActionOutcome.FAILED
        except (WriteError, InvalidValue, ResourceUnsupported) as error:
            log.once(f"{setting.resource}:{error}", "Action failed", owner=owner, cause=str(error))
            return ActionOutcome.FAILED
        else:
            outcome = ActionOutcome.DONE
        about = action.about or audit.group(setting.cgroup_dir or "")
        text = f"{setting.label} {action.value}: {outcome.value}"
        self._auditor.record(AUDIT_LEVEL, about, action.reason or "Action", text, details={"owner": owner})
        return outcome
