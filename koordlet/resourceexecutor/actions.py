"""One-shot writes: done once, audited and counted, never remembered or put back.

The kernel works while such a write lasts (`memory.reclaim` reclaims), and the caller is the process's one loop: a round
stops after `ROUND_SECONDS`, and what is left over is for the next one. A write that the kernel did in part (EAGAIN) is
an outcome, not an error; a group that ended meanwhile is none either.
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


class Outcome(StrEnum):
    """What became of an action."""

    DONE = "done"
    PARTLY = "partly"
    """The kernel could not do all of it."""
    GONE = "gone"
    FAILED = "failed"
    LATER = "later"
    """Not tried: the round's time was up."""


class Actor:
    """`act` is called by the manager's round, after the pass of settings."""

    def __init__(self, files: KernelFiles, auditor: Auditor, registries: Registries) -> None:
        self._files, self._auditor, self._registries = files, auditor, registries

    def act(self, owner: str, actions: Iterable[Action]) -> dict[Setting, Outcome]:
        """Each action's outcome, in the order given; a failure costs nobody else's."""
        found: dict[Setting, Outcome] = {}
        end = time.perf_counter() + ROUND_SECONDS
        for action in actions:
            outcome = self._do(owner, action) if time.perf_counter() < end else Outcome.LATER
            found[action.setting] = outcome
            self._registries.count("resource_actions_total", owner, action.setting.resource, outcome.value)
        return found

    def _do(self, owner: str, action: Action) -> Outcome:
        setting = action.setting
        try:
            self._files.write(setting, self._files.check(setting, action.value))
        except TargetGone:
            return Outcome.GONE if self._files.gone(setting) else Outcome.FAILED
        except TargetBusy as error:
            outcome = Outcome.PARTLY if error.errno == errno.EAGAIN else Outcome.FAILED
        except (WriteError, InvalidValue, ResourceUnsupported) as error:
            log.once(f"{setting.resource}:{error}", "action failed", owner=owner, cause=str(error))
            return Outcome.FAILED
        else:
            outcome = Outcome.DONE
        about = action.about or audit.group(setting.cgroup_dir or "")
        text = f"{setting.label} {action.value}: {outcome.value}"
        self._auditor.record(AUDIT_LEVEL, about, action.reason or "Action", text, details={"owner": owner})
        return outcome
