"""Nodes whose pods keep hurting each other lend less: a step down at a time, and back up when it is calm. Pure.

koordlet says in each NodeMetric whether neighbours hurt containers just then (`docs/interference.md`). Trouble that
lasts takes `stepPercent` of the calculated amount away, at most once in `stepSeconds`, down to `floorPercent`; calm
that lasts gives `recoverPercent` back at the same pace. One report alone changes nothing, and a report that is seen
twice counts once. The state is a `Hold` a resource, kept in the node's lending annotation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from control.manager.noderesource.report import Report
from koordlet.api.core import Node
from koordlet.api.encoding.wire import WireError
from koordlet.api.pages.overcommit import LENDING, Hold
from koordlet.api.sloconfig.lending import LENT, InterferencePolicy

CAUSES: Final = {"cpu": ("cpu", "cache", "network", "io"), "memory": ("memory",)}
"""Lent resource -> symptoms that call for lending less of it: fewer batch pods also read, write and send less."""


def hurts(report: Report, resource: str, policy: InterferencePolicy, lent: Callable[[str], bool]) -> str:
    """What is wrong with `resource` by this report, in words; empty when nothing is.

    `lent` says of a pod (`namespace/name`) whether it runs on lent resources.
    """
    symptoms = CAUSES[resource]
    told = [one for one in report.suffering if one.resource in symptoms and one.confidence >= policy.min_confidence]
    if policy.culprits == LENT:
        told = [one for one in told if one.culprit and lent(one.culprit)]
    counted = 0 if policy.culprits == LENT else sum(report.interfered.get(one, 0) for one in symptoms)
    number = max(counted, len(told))
    if not number:
        return ""
    names = sorted({one.culprit for one in told if one.culprit})
    who = f", because of {', '.join(names[:3])}" if names else ""
    return f"{number} container{'s' if number > 1 else ''} held up by neighbours{who}"


def step(hold: Hold, at: float, because: str, policy: InterferencePolicy) -> Hold:
    """The hold after a report made at `at`; `because` is what hurts, empty for nothing."""
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
    """Whether it is not worth remembering: everything is lent and nothing hurts."""
    return hold.percent == 100 and hold.hurt_since is None


def weigh(
    holds: dict[str, Hold], report: Report, policy: InterferencePolicy, lent: Callable[[str], bool]
) -> dict[str, Hold]:
    """All holds of a node after a report. Switched off, everything is lent at once."""
    if not policy.enable:
        return {}
    if not holds and not report.troubled:
        return holds
    after = {}
    for resource in CAUSES:
        because = hurts(report, resource, policy, lent)
        old = holds.get(resource)
        if old is None and not because:
            continue
        hold = step(old or Hold(), report.at, because, policy)
        if not idle(hold):
            after[resource] = hold if hold.percent < 100 else msgspec.structs.replace(hold, because=because)
    return after


def written_holds(node: Node) -> dict[str, Hold]:
    """The holds that are told on the Node, which a new leader goes on from; what cannot be read is written anew."""
    try:
        said = LENDING.get(node.metadata.annotations)
    except WireError:
        return {}
    return {name: hold for name, hold in said.hold.items() if name in CAUSES} if said is not None else {}
