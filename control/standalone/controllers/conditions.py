"""Status conditions: find, set and remove them; a transition time changes only with the status."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def find(conditions: list[Json] | None, kind: str) -> Json | None:
    return next((each for each in conditions or () if each.get("type") == kind), None)


def is_true(obj: Json, kind: str) -> bool:
    condition = find((obj.get("status") or {}).get("conditions"), kind)
    return condition is not None and condition.get("status") == "True"


def put(
    conditions: list[Json] | None, kind: str, status: str, reason: str, message: str, now: str, **more: Any
) -> list[Json]:
    """The conditions with this one set; its transition time is `now` if its status changes."""
    old = find(conditions, kind)
    since = old.get("lastTransitionTime", now) if old is not None and old.get("status") == status else now
    new = {**(old or {}), "type": kind, "status": status, "reason": reason, "message": message}
    new |= {"lastTransitionTime": since, **more}
    updated = [new if each.get("type") == kind else each for each in conditions or ()]
    return updated if old is not None else [*updated, new]
