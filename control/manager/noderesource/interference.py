"""Reduces overcommit on nodes with persistent interference stepwise, and raises it again when interference ends. Pure.

Each NodeMetric reports whether co-located pods delay containers (docs/interference.md). Interference that lasts for
`persistSeconds` reduces the calculated amount by `stepPercent`, at most once per `stepSeconds`, down to `floorPercent`.
When there was none for `persistSeconds`, the percentage rises by `recoverPercent` at the same rate. A single report
changes nothing, and a report that is processed twice counts once. The state is one `Hold` per resource; it is stored in
the annotation `node.koordinator.sh/lending`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from control.manager.noderesource.report import NodeReport
from koordlet.api.core import Node
from koordlet.api.encoding.wire import WireError
from koordlet.api.pages.overcommit import OVERCOMMIT, Hold
from koordlet.api.sloconfig.overcommit import CULPRITS_OVERCOMMITTED, InterferencePolicy

CAUSES: Final = {"cpu": ("cpu", "cache", "network", "io"), "memory": ("memory",)}
"""Overcommitted resource -> interfered resources for which it is reduced. cpu includes cache, network and io, because
fewer batch pods also use less cache, send less and read and write less."""


def describe(
    report: NodeReport, resource: str, policy: InterferencePolicy, is_overcommitted: Callable[[str], bool]
) -> str:
    """The interference with `resource` in this report, as text; empty when there is none.

    `is_overcommitted` returns whether a pod (`namespace/name`) runs on overcommitted resources.
    """
    symptoms = CAUSES[resource]
    victims = [
        victim
        for victim in report.victims
        if victim.resource in symptoms and victim.confidence >= policy.min_confidence
    ]
    if policy.culprits == CULPRITS_OVERCOMMITTED:
        victims = [victim for victim in victims if victim.culprit and is_overcommitted(victim.culprit)]
    counted = (
        0
        if policy.culprits == CULPRITS_OVERCOMMITTED
        else sum(report.interfered.get(symptom, 0) for symptom in symptoms)
    )
    number = max(counted, len(victims))
    if not number:
        return ""
    culprits = sorted({victim.culprit for victim in victims if victim.culprit})
    by = f", culprits: {', '.join(culprits[:3])}" if culprits else ""
    return f"{number} container{'s' if number > 1 else ''} delayed by co-located pods{by}"


def step(hold: Hold, at: float, because: str, policy: InterferencePolicy) -> Hold:
    """The hold after a report of time `at`; `because` describes its interference, empty for none."""
    if at <= hold.seen:
        return hold
    since = (hold.hurt_since if because else hold.calm_since) or at
    percent, moved = hold.percent, hold.moved
    if at - since >= policy.persist_seconds and at - hold.moved >= policy.step_seconds:
        if because:
            percent = min(percent, max(percent - policy.step_percent, policy.floor_percent))
        else:
            percent = min(percent + policy.recover_percent, 100)
    if percent != hold.percent:
        moved = at
    return Hold(
        percent=percent,
        seen=at,
        moved=moved,
        hurt_since=since if because else None,
        calm_since=None if because else since,
        because=because or hold.because,
    )


def idle(hold: Hold) -> bool:
    """Whether the hold can be dropped: no reduction and no interference."""
    return hold.percent == 100 and hold.hurt_since is None


def updated_holds(
    holds: dict[str, Hold], report: NodeReport, policy: InterferencePolicy, is_overcommitted: Callable[[str], bool]
) -> dict[str, Hold]:
    """All holds of a node after a report. Disabling the policy removes all reductions at once."""
    if not policy.enable:
        return {}
    if not holds and not report.has_interference:
        return holds
    after = {}
    for resource in CAUSES:
        because = describe(report, resource, policy, is_overcommitted)
        old = holds.get(resource)
        if old is None and not because:
            continue
        hold = step(old or Hold(), report.at, because, policy)
        if not idle(hold):
            after[resource] = hold if hold.percent < 100 else msgspec.structs.replace(hold, because=because)
    return after


def written_holds(node: Node) -> dict[str, Hold]:
    """The holds in the Node's annotation, from which a new leader continues; empty for a malformed annotation, which
    the next write replaces."""
    try:
        explanation = OVERCOMMIT.get(node.metadata.annotations)
    except WireError:
        return {}
    if explanation is None:
        return {}
    return {name: hold for name, hold in explanation.hold.items() if name in CAUSES}
