"""The executor: keeps the settings that owners declared and writes them to the kernel, one pass at a time.

`declare` only stores. `apply` does a pass: it reads the current value of each setting that changed or was not checked
for `force_seconds`, writes the differences in a safe order, and restores settings that no owner wants any longer. A
setting whose cgroup does not exist yet stays desired and is tried at the next pass. A write that the kernel refuses is
counted, logged once per cause, tried again later, and does not affect other settings.

Nothing is restored until every expected owner has declared once: after a restart the first strategy must not undo the
work of the others. Runs in the event loop; a pass over an unchanged node reads nothing.
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
from koordlet.resourceexecutor.merge import MergedSetting, OwnerRule, merge
from koordlet.resourceexecutor.order import SettingChange, ordered
from koordlet.resourceexecutor.settings import RANKS, DesiredSetting, Setting, Value
from koordlet.system.cgroup.registry import RESOURCES, SUSPENDED_BY
from koordlet.system.errors import InvalidValue, KernelFileError, ResourceUnsupported
from koordlet.system.write import TargetGone, WriteError

log = get_logger(__name__)

FORCE_SECONDS = 60.0
RETRY_SECONDS = 5.0
AUDIT_LEVEL = 3
AUDIT_VALUE_LENGTH = 200
"""Characters of a value in the audit log."""
RESTORED = "GiveBack"
"""Audit reason of a restored setting."""
NO_OWNER = "nobody"
"""Owner of a restored setting, in metrics and in the audit log."""


@dataclass
class PassResult:
    """What one pass did. `problems`: setting -> why it does not have the desired value."""

    written: list[SettingChange] = field(default_factory=list)
    waiting: list[Setting] = field(default_factory=list)
    problems: dict[Setting, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Check:
    """The last check of a setting: with the desired value the kernel showed `shown`, possibly rounded (None after a
    refusal)."""

    desired: Value
    shown: Value | None
    next_check: float
    problem: str = ""


class Executor:
    """See the module. `expected` owners must have declared once before anything is restored; writes for `reconcilers`
    are timed separately."""

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
        self._files = files
        self._ledger = ledger
        self._auditor = auditor
        self._registries = registries
        self._rules = tuple(rules)
        self._force = force_seconds
        self._clock = clock
        self._undeclared = set(expected)
        self._incomplete = bool(self._undeclared)
        """Whether there was no pass yet after all expected owners had declared."""
        self._requested: dict[str, tuple[DesiredSetting, ...]] = {}
        """As declared; `_declared` is the part that can be set."""
        self._declared: dict[str, dict[Setting, DesiredSetting]] = {}
        self._merged: dict[Setting, MergedSetting] | None = None
        self._followers: dict[Setting, MergedSetting] | None = None
        """Settings of child directories that the declared ones require."""
        self._checks: dict[Setting, _Check] = {}
        self._problems: dict[Setting, str] = {}
        self._durations = Durations(registries, reconcilers)

    def declare(self, owner: str, settings: Iterable[DesiredSetting]) -> None:
        """All settings that `owner` wants from now on; those that it wanted before and does not name are restored. An
        invalid value is left out, logged and counted; the owner's other settings are kept."""
        requested = tuple(settings)
        if self._requested.get(owner) == requested and owner not in self._undeclared:
            return
        before = {desired.setting: desired for desired in self._requested.get(owner, ())}
        accepted = self._declared.get(owner, {})
        self._requested[owner] = requested
        declared = {}
        for desired in requested:
            # Only changed settings are checked: checking those of a hundred pods takes a while.
            if desired.setting in accepted and before.get(desired.setting) == desired:
                declared[desired.setting] = accepted[desired.setting]
                continue
            declared |= self._accepted(owner, (desired,))
        self._undeclared.discard(owner)
        if accepted != declared or owner not in self._declared:
            if self._covering(accepted) != self._covering(declared):
                self._followers = None
            self._declared[owner] = declared
            self._merged = None

    def _accepted(self, owner: str, settings: Iterable[DesiredSetting]) -> dict[Setting, DesiredSetting]:
        """The settings that can be set, in canonical form; the others are logged and counted."""
        accepted = {}
        for desired in settings:
            try:
                value = self._files.check(desired.setting, desired.value)
            except (InvalidValue, ResourceUnsupported) as error:
                kind = "unsupported" if isinstance(error, ResourceUnsupported) else "invalid"
                self._count(owner, desired.setting, kind, str(error))
                continue
            accepted[desired.setting] = replace(desired, value=value)
        return accepted

    def _covering(self, settings: Mapping[Setting, DesiredSetting]) -> dict[Setting, DesiredSetting]:
        covers = self._files.covers_children
        return {setting: desired for setting, desired in settings.items() if covers(setting.resource)}

    def add(self, owner: str, settings: Iterable[DesiredSetting]) -> list[Setting]:
        """Add settings that `owner` wants until its next declaration; returns which settings they are. Settings that
        are declared already cost nothing; the others are checked as by `declare`, without merging all owners."""
        requested = tuple(settings)
        declared = self._declared.setdefault(owner, {})
        changed = {desired.setting: desired for desired in requested if declared.get(desired.setting) != desired}
        if changed:
            self._requested[owner] = (*self._requested.get(owner, ()), *changed.values())
            accepted = self._accepted(owner, changed.values())
            for setting in changed:
                declared.pop(setting, None)
            declared.update(accepted)
            self._merge_again(changed)
        return [desired.setting for desired in requested]

    def _merge_again(self, settings: Collection[Setting]) -> None:
        """Merge only these settings, if no other setting depends on them."""
        if self._merged is None or any(self._files.covers_children(setting.resource) for setting in settings):
            self._merged = None
            self._followers = None
            return
        claims = {
            owner: {setting: declared[setting] for setting in settings if setting in declared}
            for owner, declared in self._declared.items()
        }
        merged = merge(claims, self._rules)
        for setting in settings:
            if setting in merged:
                self._merged[setting] = merged[setting]
            else:
                self._merged.pop(setting, None)

    @property
    def desired(self) -> Mapping[Setting, MergedSetting]:
        """The merged settings of all owners, with those of child directories that they require."""
        if self._merged is None:
            merged = merge(self._declared, self._rules)
            if self._followers is None:  # kept, because listing hundreds of directories takes a while
                self._followers = self._find_followers(merged)
            self._merged = merged | self._followers
        return self._merged

    def _find_followers(self, merged: Mapping[Setting, MergedSetting]) -> dict[Setting, MergedSetting]:
        """Settings of child directories that no owner declares and that would make the kernel refuse the parent's
        value: on cgroup v1 no directory may have fewer CPUs than one below it, whether an owner knows that one (a
        container) or not (a pod's sandbox, a dead container). They get the value of their parent."""
        followers: dict[Setting, MergedSetting] = {}
        parents = [setting for setting in merged if self._files.covers_children(setting.resource)]
        while parents:
            parent = parents.pop()
            above = merged.get(parent) or followers[parent]
            for child in self._files.child_settings(parent):
                if child not in merged:
                    followers[child] = MergedSetting(replace(above.desired, setting=child, neutral=None), above.owner)
                    parents.append(child)
        return followers

    def current(self, setting: Setting) -> Value | None:
        """The kernel's value, from the last check where that is recent; None when it cannot be read."""
        check = self._checks.get(setting)
        if check is not None and check.shown is not None and self._clock() < check.next_check:
            return check.shown
        try:
            return self._files.read(setting)
        except KernelFileError as error:
            self._count(NO_OWNER, setting, "unreadable", str(error))
            return None

    @property
    def problems(self) -> Mapping[Setting, str]:
        """Settings that did not have the desired value at their last check, and why."""
        return self._problems

    @property
    def originals(self) -> Mapping[Setting, Value]:
        """The values of settings before koordlet's first write."""
        return self._ledger.originals

    def apply(self) -> PassResult:
        """One pass over all settings. If the ledger cannot be saved, settings that were never written before are not
        written; all others are."""
        result = PassResult()
        now = self._clock()
        desired = self.desired
        if self._incomplete and not self._undeclared:
            # Leftovers of an earlier process are restored now. Settings that they may have blocked are tried again.
            self._incomplete = False
            self._checks = {setting: check for setting, check in self._checks.items() if not check.problem}
        changes = [
            change
            for setting, merged in desired.items()
            if not self._suspended(setting) and (change := self._check(setting, merged, now, result))
        ]
        if not self._undeclared:
            unwanted = [
                setting for setting in self._ledger.originals if setting not in desired and not self._suspended(setting)
            ]
            changes += [change for setting in unwanted if (change := self._restore(setting, result))]
        for setting in [setting for setting in self._problems if setting not in desired]:
            del self._problems[setting]
        return self._finish(changes, now, result)

    def above(self, cgroup_dir: str) -> list[Setting]:
        """The desired settings of the directories above this one."""
        parents = {str(parent) for parent in PurePosixPath(cgroup_dir).parents}
        return [setting for setting in self.desired if setting.cgroup_dir in parents]

    def apply_to(self, settings: Iterable[Setting]) -> PassResult:
        """A pass over these settings only, even if they were checked recently. Nothing is restored."""
        result = PassResult()
        now = self._clock()
        desired = self.desired
        changes = [
            change
            for setting in dict.fromkeys(settings)
            if (merged := desired.get(setting)) is not None
            and not self._suspended(setting)
            and (change := self._check(setting, merged, now, result, force=True))
        ]
        return self._finish(changes, now, result)

    def restore_everything(self) -> PassResult:
        """Restore every setting, as at an orderly stop."""
        self._requested.clear()
        self._declared.clear()
        self._merged = {}
        self._undeclared.clear()
        return self.apply()

    def _finish(self, changes: list[SettingChange], now: float, result: PassResult) -> PassResult:
        """The end of every pass."""
        self._carry_out(changes, now, result)
        self._retry_waiting(now, result)
        self._save()
        self._problems.update(result.problems)
        return result

    def _carry_out(self, changes: list[SettingChange], now: float, result: PassResult) -> None:
        for change in ordered(self._recorded(changes, result)):
            self._write(change, self.desired.get(change.setting), now, result)

    def _retry_waiting(self, now: float, result: PassResult) -> None:
        """Settings that waited for an object that this pass has created."""
        for _ in set(RANKS.values()):
            waiting = [setting for setting in result.waiting if setting.resource in RANKS]
            if not waiting or not any(change.setting.resource in RANKS for change in result.written):
                return
            result.waiting = [setting for setting in result.waiting if setting.resource not in RANKS]
            checks = [self._check(setting, self.desired[setting], now, result) for setting in waiting]
            changes = [change for change in checks if change is not None]
            if not changes:
                return
            self._carry_out(changes, now, result)

    def _check(
        self, setting: Setting, merged: MergedSetting, now: float, result: PassResult, *, force: bool = False
    ) -> SettingChange | None:
        """The change that the setting needs, if any."""
        value = merged.desired.value
        last = self._checks.get(setting)
        if not force and last is not None and last.desired == value and now < last.next_check:
            if last.problem:
                result.problems[setting] = last.problem
            return None
        try:
            current = self._files.read(setting)
            holds = None if current is None else self._files.holds(setting, value)
        except KernelFileError as error:
            self._fail(setting, value, merged.owner, str(error), now + RETRY_SECONDS, result)
            return None
        if current is None and not self._files.gone(setting):
            self._fail(setting, value, merged.owner, "this kernel has no such file", now + self._force, result)
            return None
        if current is None:
            self._checks.pop(setting, None)
            result.waiting.append(setting)
            return None
        foreign = last is not None and last.shown is not None and current not in (last.shown, last.desired)
        if (
            foreign and setting in self._ledger.originals
        ):  # the kubelet wrote a new value, which is to be restored later
            self._ledger.originals[setting] = current
        if holds is None:
            holds = current == value or (last is not None and last.desired == value and last.shown == current)
        if holds:
            self._checks[setting] = _Check(value, current, now + self._check_period(setting))
            self._problems.pop(setting, None)
            if merged.desired.neutral is not None:  # a hook has set the value before koordlet saw the file
                self._ledger.originals.setdefault(setting, merged.desired.neutral)
            return None
        return SettingChange(setting, current, value)

    def _restore(self, setting: Setting, result: PassResult) -> SettingChange | None:
        """The change to the original value, or None when there is nothing (left) to change."""
        self._checks.pop(setting, None)
        original = self._ledger.originals[setting]
        try:
            current = self._files.read(setting)
        except KernelFileError as error:
            result.problems[setting] = str(error)
            return None
        if current is None or current == original:
            del self._ledger.originals[setting]
            return None
        return SettingChange(setting, current, original)

    def _recorded(self, changes: list[SettingChange], result: PassResult) -> list[SettingChange]:
        """The changes whose original value is in the ledger on disk."""
        new = {change.setting for change in changes if change.setting not in self._ledger.originals}
        for change in changes:
            if change.value == 1 and (suspended := _suspended_setting(change.setting)) is not None:
                self._record_suspended(suspended)
        for change in changes:
            if change.setting in new:
                neutral = self.desired[change.setting].desired.neutral
                unset = change.current == ""  # a v2 CPU set that equals the parent's: restored to the empty set
                self._ledger.originals[change.setting] = change.current if neutral is None or unset else neutral
        error = self._save()
        if not error:
            return changes
        for setting in new:
            del self._ledger.originals[setting]
            result.problems[setting] = error
        return [change for change in changes if change.setting not in new]

    def _suspended(self, setting: Setting) -> bool:
        """Whether the kernel neither accepts nor shows the setting, because another one suspends it or is going to."""
        name = SUSPENDED_BY.get(setting.resource)
        if name is None:
            return False
        suspending = Setting(name, setting.cgroup_dir)
        merged = self.desired.get(suspending)
        if merged is not None and merged.desired.value == 1:
            return True
        return suspending in self._ledger.originals and self.current(suspending) == 1

    def _record_suspended(self, setting: Setting) -> None:
        current = None if setting in self._ledger.originals else self.current(setting)
        if current is not None:
            self._ledger.originals[setting] = current

    def _write_suspended(self, setting: Setting, now: float, result: PassResult) -> None:
        """The setting has just become writable again: write the desired value, or the original."""
        self._checks.pop(setting, None)
        merged = self.desired.get(setting)
        value = self._ledger.originals.get(setting) if merged is None else merged.desired.value
        current = self.current(setting)
        if value is not None and current is not None:
            self._write(SettingChange(setting, current, value), merged, now, result)

    def _save(self) -> str:
        try:
            self._ledger.save()
        except LedgerError as error:
            cause = str(error)
            log.once(f"ledger:{cause}", "Settings are not written for the first time: no ledger", cause=cause)
            return cause
        return ""

    def _write(self, change: SettingChange, merged: MergedSetting | None, now: float, result: PassResult) -> None:
        setting = change.setting
        owner = NO_OWNER if merged is None else merged.owner
        started = time.perf_counter()
        try:
            self._files.write(setting, change.value)
            shown = self._files.read(setting)
        except TargetGone as error:
            if self._files.gone(setting):
                self._vanished(setting, merged, result)
            else:
                self._refused(change, merged, str(error), now, result)
            return
        except (WriteError, KernelFileError) as error:
            self._durations.observe(setting, owner, started, failed=True)
            self._refused(change, merged, str(error), now, result)
            return
        self._durations.observe(setting, owner, started, failed=False)
        result.written.append(change)
        self._audit(change, merged)
        if shown is None:
            self._vanished(setting, merged, result)
        elif change.last and merged is None:
            del self._ledger.originals[setting]
        elif change.last:
            self._checks[setting] = _Check(change.value, shown, now + self._check_period(setting))
            self._problems.pop(setting, None)
        if change.value == 0 and (suspended := _suspended_setting(setting)) is not None:
            self._write_suspended(suspended, now, result)

    def _check_period(self, setting: Setting) -> float:
        """Seconds until the next check of a setting that has the desired value."""
        period = self._files.period(setting)
        return self._force if period is None else min(period, self._force)

    def _vanished(self, setting: Setting, merged: MergedSetting | None, result: PassResult) -> None:
        if merged is None:
            self._ledger.originals.pop(setting, None)
        else:
            result.waiting.append(setting)

    def _refused(
        self, change: SettingChange, merged: MergedSetting | None, cause: str, now: float, result: PassResult
    ) -> None:
        if merged is not None:
            self._fail(change.setting, merged.desired.value, merged.owner, cause, now + RETRY_SECONDS, result)
        else:
            result.problems[change.setting] = cause
            self._count(NO_OWNER, change.setting, "failed", cause)

    def _audit(self, change: SettingChange, merged: MergedSetting | None) -> None:
        setting = change.setting
        about = merged.desired.about if merged is not None else None
        if about is None:
            about = audit.node() if setting.cgroup_dir is None else audit.group(setting.cgroup_dir)
        reason = RESTORED if merged is None else merged.desired.reason or "UpdateCgroups"
        owner = NO_OWNER if merged is None else merged.owner
        message = f"update {setting.label} from {_short(change.current)} to {_short(change.value)}"
        self._auditor.record(AUDIT_LEVEL, about, reason, message, details={"owner": owner})

    def _fail(
        self, setting: Setting, value: Value, owner: str, cause: str, next_check: float, result: PassResult
    ) -> None:
        """Record a problem; the setting is tried again later, not at every pass."""
        result.problems[setting] = cause
        self._checks[setting] = _Check(value, None, next_check, cause)
        self._count(owner, setting, "failed", cause)

    def _count(self, owner: str, setting: Setting, kind: str, cause: str) -> None:
        self._registries.count("resource_update_problems_total", owner, setting.resource, kind)
        log.once(f"{kind}:{setting.resource}:{cause}", "Setting not applied", owner=owner, cause=cause)


def _suspended_setting(setting: Setting) -> Setting | None:
    """The setting that this one suspends while it is 1."""
    resource = RESOURCES.get(setting.resource)
    return Setting(resource.suspends, setting.cgroup_dir) if resource is not None and resource.suspends else None


def _short(value: Value) -> str:
    """Lists of directories and addresses have an entry for each pod of the node."""
    text = str(value)
    return text if len(text) <= AUDIT_VALUE_LENGTH else f"{text[:AUDIT_VALUE_LENGTH]}… ({len(text)} characters)"
