"""Decides whether a gang may be tried, and whether its members may be bound (spec 05 §9.3, §9.5). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.gang import Gang
from koordlet.api.annotations.gang import MATCH_ONCE_SATISFIED, MATCH_WAITING_AND_RUNNING


def why_not_tried(cache: GangCache, name: str, key: str) -> str:
    """Why the pod `key` of gang `name` may not be tried; empty if it may. A rejected pod stops being representative."""
    gang = cache.gangs.get(name)
    if gang is None:
        return f"can't find gang, gangName: {name}, podName: {key}"
    if not gang.initialized:
        return f"gang has not init, gangName: {name}, podName: {key}"
    if gang.settled:
        return ""
    problems = _basic_problems(cache, gang)
    if not problems:
        return ""
    if gang.group.representative == key:
        gang.group.representative = ""
    return (
        f"gangGroup {_listed(gang.group.gang_ids)} basic check: {', '.join(problems)}, "
        f"current gang: {name}, podName: {key}"
    )


def why_not_enqueued(gang: Gang, key: str) -> str:
    """Why the pod may not be queued although its gang may be tried; empty if it may.

    At most one pod represents the group; this function chooses it."""
    group = gang.group
    if key not in gang.pending:
        return f"pod {key} is not exists in gangCache"
    if not group.representative:
        group.representative = key
    if group.representative == key:
        return ""
    return f"representative pod {group.representative} of gangGroupID {group.id} already exists"


def satisfied(cache: GangCache, gang: Gang, permitted: Callable[[str], bool]) -> bool:
    """Whether every gang of the group has enough members. `permitted`: see `GangRounds.permitted`."""
    return all(_enough(cache.member(gang.group, gang_id), permitted) for gang_id in gang.group.gang_ids)


def _enough(gang: Gang | None, permitted: Callable[[str], bool]) -> bool:
    if gang is None or gang.parameters is None:
        return False
    if gang.parameters.policy == MATCH_ONCE_SATISFIED and gang.group.once_satisfied:
        return True
    number = sum(map(permitted, gang.waiting.values()))
    if gang.parameters.policy == MATCH_WAITING_AND_RUNNING:
        number += len(gang.bound)
    return number >= gang.parameters.minimum


def _basic_problems(cache: GangCache, gang: Gang) -> list[str]:
    ids = gang.group.gang_ids
    missing = [gang_id for gang_id in ids if gang_id not in cache.gangs]
    members = cache.gangs_of(gang.group)
    raw = [gang_id for gang_id in ids if gang_id in cache.gangs and not cache.gangs[gang_id].initialized]
    foreign = sorted(set(ids) - {*missing, *raw} - {member.id for member in members})
    few = any(member.initialized and not member.complete for member in members)
    problems = []
    if foreign:
        problems.append(f"memberGangs {_listed(foreign)} of other namespaces don't name the group")
    if missing:
        problems.append(f"memberGangs {_listed(missing)} doesn't exists")
    if raw:
        problems.append(f"memberGangs {_listed(raw)} has not init")
    if few:
        problems.append(f"memberGangs {_listed(ids)} child pod not collect enough")
    return problems


def _listed(ids: Iterable[str]) -> str:
    return f"[{' '.join(ids)}]"
