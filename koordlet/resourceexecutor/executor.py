"""The executor: keeps what owners declared, and makes the kernel agree, one pass at a time.

`declare` only remembers. `apply` does a pass: it reads what a changed wish (or one that was not looked at for
`force_seconds`) finds in its file, writes what differs in a safe order, and gives back what nobody wants any more. A
setting whose cgroup is not there yet stays wished and is tried at the next pass; a refusal of the kernel is counted,
audited once per cause and tried again, and costs nobody else's setting.

Nothing is given back until every expected owner has declared once: after a restart the first strategy to speak must not
undo the others' work. Runs in the process's one loop; a pass over an unchanged node reads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from koordlet import audit
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.prometheus import Registries
from koordlet.resourceexecutor.durations import Durations
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger, LedgerError
from koordlet.resourceexecutor.merge import OwnerRule, Wish, merge
from koordlet.resourceexecutor.order import CPU_SETS, Change, ordered
from koordlet.resourceexecutor.settings import RANKS, Setting, Update, Value
from koordlet.system.errors import InvalidValue, KernelFileError, ResourceUnsupported
from koordlet.system.write import TargetGone, WriteError

log = get_logger(__name__)

FORCE_SECONDS = 60.0
RETRY_SECONDS = 5.0
SHORT = 200
"""Characters of a value in the audit log."""
GIVEN_BACK = "GiveBack"
NOBODY = "nobody"
IDLE, WEIGHT = "cpu.idle", "cpu.shares"
"""The kernel forgets a group's weight when it becomes idle, takes none while it is, and gives it the default one after:
the weight is remembered before and written again after."""


@dataclass
class PassResult:
    """What one pass did. `problems`: setting -> why it does not hold what it should."""

    written: list[Change] = field(default_factory=list)
    waiting: list[Setting] = field(default_factory=list)
    problems: dict[Setting, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """What the last look found: `asked` led to `shown`, which the kernel may have rounded (None after a refusal)."""

    asked: Value
    shown: Value | None
    next_look: float
    problem: str = ""


class Executor:
    """See the module. `expected` owners must have declared once before anything is given back; writes for
    `reconcilers` are timed apart."""

    def __init__(
        self,
        files: KernelFiles,
        ledger: Ledger,
        auditor: Auditor,
        registries: Registries,
        *,
        rules: Sequence[OwnerRule] = (),
        expected: Iterable[str] = (),
        reconcilers: Collection[str] = (),
        force_seconds: float = FORCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._ledger, self._auditor, self._registries = files, ledger, auditor, registries
        self._rules, self._force, self._clock = tuple(rules), force_seconds, clock
        self._silent = set(expected)
        self._incomplete = bool(self._silent)
        """Whether there was no pass yet in which everybody had spoken."""
        self._given: dict[str, tuple[Update, ...]] = {}
        """As declared; `_declared` is what of it can be set."""
        self._declared: dict[str, dict[Setting, Update]] = {}
        self._merged: dict[Setting, Wish] | None = None
        self._following: dict[Setting, Wish] | None = None
        """What follows from the CPU sets that are declared."""
        self._held: dict[Setting, _Held] = {}
        self._problems: dict[Setting, str] = {}
        self._durations = Durations(registries, reconcilers)

    def declare(self, owner: str, updates: Iterable[Update]) -> None:
        """All that `owner` wants from now on; what it wanted before and does not name is given back. A value that the
        setting can't take is left out, said and counted; the owner's others stand."""
        given = tuple(updates)
        if self._given.get(owner) == given and owner not in self._silent:
            return
        asked, stands = {update.setting: update for update in self._given.get(owner, ())}, self._declared.get(owner, {})
        self._given[owner] = given
        wanted = {}
        for update in given:
            if update.setting in stands and asked.get(update.setting) == update:  # a hundred pods' checks take a while
                wanted[update.setting] = stands[update.setting]
                continue
            wanted |= self._checked(owner, (update,))
        self._silent.discard(owner)
        if self._declared.get(owner) != wanted:
            if _cpu_sets(self._declared.get(owner, {})) != _cpu_sets(wanted):
                self._following = None
            self._declared[owner] = wanted
            self._merged = None

    def _checked(self, owner: str, updates: Iterable[Update]) -> dict[Setting, Update]:
        """Those that can be set, in canonical form; the others are said and counted."""
        found = {}
        for update in updates:
            try:
                value = self._files.check(update.setting, update.value)
            except (InvalidValue, ResourceUnsupported) as error:
                kind = "unsupported" if isinstance(error, ResourceUnsupported) else "invalid"
                self._count(owner, update.setting, kind, str(error))
                continue
            found[update.setting] = replace(update, value=value)
        return found

    def add(self, owner: str, updates: Iterable[Update]) -> list[Setting]:
        """More that `owner` wants, until it declares the next time, and the settings that this is about. What stands
        already costs nothing; the rest is judged as `declare` does, without looking at what everybody else wants."""
        asked = tuple(updates)
        declared = self._declared.setdefault(owner, {})
        news = {update.setting: update for update in asked if declared.get(update.setting) != update}
        if news:
            self._given[owner] = (*self._given.get(owner, ()), *news.values())
            added = self._checked(owner, news.values())
            for setting in news:
                declared.pop(setting, None)
            declared.update(added)
            self._merge_again(news)
        return [update.setting for update in asked]

    def _merge_again(self, settings: Collection[Setting]) -> None:
        """Wishes for these only, if the others stand whatever these are."""
        if self._merged is None or any(setting.resource in CPU_SETS for setting in settings):
            self._merged = self._following = None
            return
        claims = {
            owner: {setting: updates[setting] for setting in settings if setting in updates}
            for owner, updates in self._declared.items()
        }
        found = merge(claims, self._rules)
        for setting in settings:
            if setting in found:
                self._merged[setting] = found[setting]
            else:
                self._merged.pop(setting, None)

    def withdraw(self, owner: str) -> None:
        """The owner was switched off."""
        self.declare(owner, ())

    @property
    def wishes(self) -> Mapping[Setting, Wish]:
        """What shall be, and who says so."""
        if self._merged is None:
            merged = merge(self._declared, self._rules)
            if self._following is None:  # looking below hundreds of groups takes a while
                self._following = self._followers(merged)
            self._merged = merged | self._following
        return self._merged

    def _followers(self, wishes: Mapping[Setting, Wish]) -> dict[Setting, Wish]:
        """cgroup v1 lets no group have fewer CPUs than one below it, whether somebody knows that one (a container) or
        not (a pod's sandbox, a dead container): unknown ones get what their parents get."""
        found: dict[Setting, Wish] = {}
        parents = [setting for setting in wishes if setting.resource in CPU_SETS]
        while parents:
            parent = parents.pop()
            wish = wishes.get(parent) or found[parent]
            for child in self._files.bound_below(parent):
                if child not in wishes:
                    found[child] = Wish(replace(wish.update, setting=child, neutral=None), wish.owner)
                    parents.append(child)
        return found

    def current(self, setting: Setting) -> Value | None:
        """What the kernel holds, from the last look where that is recent; None when it can't be told."""
        held = self._held.get(setting)
        if held is not None and held.shown is not None and self._clock() < held.next_look:
            return held.shown
        try:
            return self._files.read(setting)
        except KernelFileError as error:
            self._count(NOBODY, setting, "unreadable", str(error))
            return None

    @property
    def problems(self) -> Mapping[Setting, str]:
        """Settings that the last look found not to hold what they should, and why."""
        return self._problems

    @property
    def originals(self) -> Mapping[Setting, Value]:
        """What touched settings held before."""
        return self._ledger.originals

    def apply(self) -> PassResult:
        """One pass. A ledger that can't be saved holds back what was never touched before, and nothing else."""
        result, now = PassResult(), self._clock()
        wishes = self.wishes
        if self._incomplete and not self._silent:  # leftovers go now: what they stood in the way of is tried again
            self._incomplete = False
            self._held = {setting: held for setting, held in self._held.items() if not held.problem}
        changes = [
            change
            for setting, wish in wishes.items()
            if not self._weight_of_idle(setting) and (change := self._look(setting, wish, now, result))
        ]
        if not self._silent:
            unwanted = [
                setting
                for setting in self._ledger.originals
                if setting not in wishes and not self._weight_of_idle(setting)
            ]
            changes += [change for setting in unwanted if (change := self._give_back(setting, result))]
        for setting in [setting for setting in self._problems if setting not in wishes]:
            del self._problems[setting]
        return self._finish(changes, now, result)

    def above(self, cgroup_dir: str) -> list[Setting]:
        """What is wished of the groups that this one is in."""
        parents = {str(parent) for parent in PurePosixPath(cgroup_dir).parents}
        return [setting for setting in self.wishes if setting.cgroup_dir in parents]

    def apply_to(self, settings: Iterable[Setting]) -> PassResult:
        """A pass over these only, whenever they were looked at last: nothing else is looked at, nothing given back."""
        result, now = PassResult(), self._clock()
        wishes = self.wishes
        changes = [
            change
            for setting in dict.fromkeys(settings)
            if (wish := wishes.get(setting)) is not None
            and not self._weight_of_idle(setting)
            and (change := self._look(setting, wish, now, result, anew=True))
        ]
        return self._finish(changes, now, result)

    def give_everything_back(self) -> PassResult:
        """What an orderly stop does: every touched setting as it was."""
        self._given.clear()
        self._declared.clear()
        self._merged = {}
        self._silent.clear()
        return self.apply()

    def _finish(self, changes: list[Change], now: float, result: PassResult) -> PassResult:
        """How every pass ends."""
        self._carry_out(changes, now, result)
        self._go_on(now, result)
        self._save()
        self._problems.update(result.problems)
        return result

    def _carry_out(self, changes: list[Change], now: float, result: PassResult) -> None:
        for change in ordered(self._remembered(changes, result)):
            self._write(change, self.wishes.get(change.setting), now, result)

    def _go_on(self, now: float, result: PassResult) -> None:
        """Settings that waited for something that this pass has made."""
        for _ in set(RANKS.values()):
            again = [setting for setting in result.waiting if setting.resource in RANKS]
            if not again or not any(change.setting.resource in RANKS for change in result.written):
                return
            result.waiting = [setting for setting in result.waiting if setting.resource not in RANKS]
            looks = [self._look(setting, self.wishes[setting], now, result) for setting in again]
            changes = [change for change in looks if change is not None]
            if not changes:
                return
            self._carry_out(changes, now, result)

    def _look(
        self, setting: Setting, wish: Wish, now: float, result: PassResult, *, anew: bool = False
    ) -> Change | None:
        """The change that the setting needs, if any."""
        asked = wish.update.value
        held = self._held.get(setting)
        if not anew and held is not None and held.asked == asked and now < held.next_look:
            if held.problem:
                result.problems[setting] = held.problem
            return None
        try:
            current = self._files.read(setting)
            holds = None if current is None else self._files.holds(setting, asked)
        except KernelFileError as error:
            self._fail(setting, asked, wish.owner, str(error), now + RETRY_SECONDS, result)
            return None
        if current is None and not self._files.gone(setting):
            self._fail(setting, asked, wish.owner, "this kernel has no such file", now + self._force, result)
            return None
        if current is None:
            self._held.pop(setting, None)
            result.waiting.append(setting)
            return None
        foreign = held is not None and held.shown is not None and current not in (held.shown, held.asked)
        if foreign and setting in self._ledger.originals:  # the kubelet's newer word is what to go back to
            self._ledger.originals[setting] = current
        if holds is None:
            holds = current == asked or (held is not None and held.asked == asked and held.shown == current)
        if holds:
            self._held[setting] = _Held(asked, current, now + self._patience(setting))
            self._problems.pop(setting, None)
            if wish.update.neutral is not None:  # a hook had set it already
                self._ledger.originals.setdefault(setting, wish.update.neutral)
            return None
        return Change(setting, current, asked)

    def _give_back(self, setting: Setting, result: PassResult) -> Change | None:
        """The change back to the original, or None when there is nothing (left) to change."""
        self._held.pop(setting, None)
        original = self._ledger.originals[setting]
        try:
            current = self._files.read(setting)
        except KernelFileError as error:
            result.problems[setting] = str(error)
            return None
        if current is None or current == original:
            del self._ledger.originals[setting]
            return None
        return Change(setting, current, original)

    def _remembered(self, changes: list[Change], result: PassResult) -> list[Change]:
        """The changes whose way back is on disk."""
        new = {change.setting for change in changes if change.setting not in self._ledger.originals}
        for change in changes:
            if change.setting.resource == IDLE and change.value == 1:
                self._remember_weight(Setting(WEIGHT, change.setting.cgroup_dir))
        for change in changes:
            if change.setting in new:
                neutral = self.wishes[change.setting].update.neutral
                unset = change.current == ""  # a v2 CPU set that follows its parent's is its own way back
                self._ledger.originals[change.setting] = change.current if neutral is None or unset else neutral
        error = self._save()
        if not error:
            return changes
        for setting in new:
            del self._ledger.originals[setting]
            result.problems[setting] = error
        return [change for change in changes if change.setting not in new]

    def _weight_of_idle(self, setting: Setting) -> bool:
        """A weight that the kernel neither takes nor shows because the group is idle, or shall be."""
        if setting.resource != WEIGHT:
            return False
        idle = Setting(IDLE, setting.cgroup_dir)
        wish = self.wishes.get(idle)
        if wish is not None and wish.update.value == 1:
            return True
        return idle in self._ledger.originals and self.current(idle) == 1

    def _remember_weight(self, weight: Setting) -> None:
        current = None if weight in self._ledger.originals else self.current(weight)
        if current is not None:
            self._ledger.originals[weight] = current

    def _weigh_again(self, weight: Setting, now: float, result: PassResult) -> None:
        """The group has just ceased to be idle: what is wished, or what it weighed before."""
        self._held.pop(weight, None)
        wish, original = self.wishes.get(weight), self._ledger.originals.get(weight)
        value = original if wish is None else wish.update.value
        current = self.current(weight)
        if value is not None and current is not None:
            self._write(Change(weight, current, value), wish, now, result)

    def _save(self) -> str:
        try:
            self._ledger.save()
        except LedgerError as error:
            log.once(f"ledger:{error}", "settings are not touched for the first time until they can be remembered",
                     cause=str(error))  # fmt: skip
            return str(error)
        return ""

    def _write(self, change: Change, wish: Wish | None, now: float, result: PassResult) -> None:
        setting, owner = change.setting, NOBODY if wish is None else wish.owner
        started = time.perf_counter()
        try:
            self._files.write(setting, change.value)
            shown = self._files.read(setting)
        except TargetGone as error:
            if self._files.gone(setting):
                self._vanished(setting, wish, result)
            else:
                self._refused(change, wish, str(error), now, result)
            return
        except (WriteError, KernelFileError) as error:
            self._durations.observe(setting, owner, started, failed=True)
            self._refused(change, wish, str(error), now, result)
            return
        self._durations.observe(setting, owner, started, failed=False)
        result.written.append(change)
        self._audit(change, wish)
        if shown is None:
            self._vanished(setting, wish, result)
        elif change.last and wish is None:
            del self._ledger.originals[setting]
        elif change.last:
            self._held[setting] = _Held(change.value, shown, now + self._patience(setting))
            self._problems.pop(setting, None)
        if setting.resource == IDLE and change.value == 0:
            self._weigh_again(Setting(WEIGHT, setting.cgroup_dir), now, result)

    def _patience(self, setting: Setting) -> float:
        """Seconds until the next look at what holds."""
        period = self._files.period(setting)
        return self._force if period is None else min(period, self._force)

    def _vanished(self, setting: Setting, wish: Wish | None, result: PassResult) -> None:
        if wish is None:
            self._ledger.originals.pop(setting, None)
        else:
            result.waiting.append(setting)

    def _refused(self, change: Change, wish: Wish | None, cause: str, now: float, result: PassResult) -> None:
        if wish is not None:
            self._fail(change.setting, wish.update.value, wish.owner, cause, now + RETRY_SECONDS, result)
        else:
            result.problems[change.setting] = cause
            self._count(NOBODY, change.setting, "failed", cause)

    def _audit(self, change: Change, wish: Wish | None) -> None:
        setting = change.setting
        about = wish.update.about if wish is not None else None
        if about is None:
            about = audit.node() if setting.cgroup_dir is None else audit.group(setting.cgroup_dir)
        reason = GIVEN_BACK if wish is None else wish.update.reason or "UpdateCgroups"
        self._auditor.record(
            3, about, reason, f"update {setting.label} from {_short(change.current)} to {_short(change.value)}",
            details={"owner": NOBODY if wish is None else wish.owner},
        )  # fmt: skip

    def _fail(self, setting: Setting, asked: Value, owner: str, cause: str, again: float, result: PassResult) -> None:
        """Tried again later, not at every pass."""
        result.problems[setting] = cause
        self._held[setting] = _Held(asked, None, again, cause)
        self._count(owner, setting, "failed", cause)

    def _count(self, owner: str, setting: Setting, kind: str, cause: str) -> None:
        self._registries.count("resource_update_problems_total", owner, setting.resource, kind)
        log.once(f"{kind}:{setting.resource}:{cause}", "setting not applied", owner=owner, cause=cause)


def _short(value: Value) -> str:
    """Lists of directories and addresses are as long as a node has pods."""
    text = str(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}… ({len(text)} characters)"


def _cpu_sets(updates: Mapping[Setting, Update]) -> dict[Setting, Update]:
    return {setting: update for setting, update in updates.items() if setting.resource in CPU_SETS}
