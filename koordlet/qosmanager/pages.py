"""`/enforcement`: what is set, by whom, over whom, what holds it up. Only formats."""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.api.enforcement import Enforcement, RuleState, SettingState
from koordlet.metrics import Registries
from koordlet.qosmanager.manager import QoSManager
from koordlet.resourceexecutor import Executor, OwnerRule


def state_page(manager: QoSManager, executor: Executor, rules: Sequence[OwnerRule]) -> Enforcement:
    """For people and `koordctl`."""
    problems, originals = executor.problems, executor.originals
    wishes = sorted(executor.wishes.items(), key=lambda item: item[0].label)
    return Enforcement(
        strategies=manager.notes,
        rules=[RuleState(resources=list(rule.resources), owners=list(rule.owners), why=rule.why) for rule in rules],
        settings=[
            SettingState(
                setting=setting.label,
                value=wish.update.value,
                owner=wish.owner,
                overruled=list(wish.overruled),
                was=originals.get(setting),
                problem=problems.get(setting, ""),
            )
            for setting, wish in wishes
        ],
        stuck={setting.label: cause for setting, cause in problems.items() if setting not in executor.wishes},
    )


def attach_enforcement(registries: Registries, executor: Executor) -> None:
    """Figures of the executor."""
    registries.view("settings", lambda: _by_owner(executor))
    registries.view("setting_problems", lambda: [((), len(executor.problems))])


def _by_owner(executor: Executor) -> list[tuple[tuple[str, ...], float]]:
    counts: dict[str, int] = {}
    for wish in executor.wishes.values():
        counts[wish.owner] = counts.get(wish.owner, 0) + 1
    return [((owner,), count) for owner, count in counts.items()]
