"""The page `/enforcement`: settings with their owners, overruled owners and problems. Only formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koordlet.api.pages.enforcement import Enforcement, RuleState, SettingState
from koordlet.api.pages.interference import ThrottledPodReport
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.throttling.strategy import ThrottledPod
from koordlet.resourceexecutor import Executor, OwnerRule


def state_page(manager: QoSManager, executor: Executor, rules: Sequence[OwnerRule]) -> Enforcement:
    """For people and `koordctl`."""
    problems, originals = executor.problems, executor.originals
    desired = sorted(executor.desired.items(), key=lambda item: item[0].label)
    return Enforcement(
        strategies=manager.notes,
        rules=[RuleState(resources=list(rule.resources), owners=list(rule.owners), why=rule.why) for rule in rules],
        settings=[
            SettingState(
                setting=setting.label,
                value=merged.desired.value,
                owner=merged.owner,
                overruled=list(merged.overruled),
                was=originals.get(setting),
                problem=problems.get(setting, ""),
            )
            for setting, merged in desired
        ],
        stuck={setting.label: cause for setting, cause in problems.items() if setting not in executor.desired},
    )


def throttled_page(throttled: Iterable[ThrottledPod], unix_offset: float) -> list[ThrottledPodReport]:
    """`unix_offset` is added to the strategy's times to give Unix seconds."""
    return [
        ThrottledPodReport(
            namespace=throttled_pod.pod.namespace,
            pod=throttled_pod.pod.name,
            uid=throttled_pod.pod.uid,
            resource=throttled_pod.resource,
            percent=throttled_pod.state.level,
            had=throttled_pod.state.base,
            left=throttled_pod.remaining,
            since=round(throttled_pod.state.began + unix_offset, 3),
            floor=throttled_pod.state.at_floor_since is not None,
            why=throttled_pod.why,
            problem=throttled_pod.problem,
        )
        for throttled_pod in throttled
    ]


def throttled_about(
    throttled: Iterable[ThrottledPod], uid: str, unix_offset: float
) -> tuple[list[ThrottledPodReport], list[ThrottledPodReport]]:
    """How the pod is throttled, and the pods that are throttled because they delay it."""
    known = tuple(throttled)
    own = [throttled_pod for throttled_pod in known if throttled_pod.pod.uid == uid]
    for_it = [throttled_pod for throttled_pod in known if uid in (victim for victim, _ in throttled_pod.victims)]
    return throttled_page(own, unix_offset), throttled_page(for_it, unix_offset)


def attach_enforcement(registries: Registries, executor: Executor) -> None:
    """Metrics of the executor."""
    registries.view("settings", lambda: _by_owner(executor))
    registries.view("setting_problems", lambda: [((), len(executor.problems))])


def _by_owner(executor: Executor) -> list[tuple[tuple[str, ...], float]]:
    counts: dict[str, int] = {}
    for merged in executor.desired.values():
        counts[merged.owner] = counts.get(merged.owner, 0) + 1
    return [((owner,), count) for owner, count in counts.items()]
