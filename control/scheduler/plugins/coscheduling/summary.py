"""The pages of gangs (spec 05 §6)."""

from __future__ import annotations

from typing import Any

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.plugins.coscheduling.gang import Gang, GangGroup
from control.scheduler.plugins.coscheduling.params import FROM_POD, FROM_POD_GROUP
from koordlet.api.annotations.gang import MODE_STRICT
from koordlet.api.encoding.wire import Time


def of(gang: Gang, args: CoschedulingArgs) -> dict[str, Any]:
    """One gang, in Koordinator's format."""
    parameters = gang.parameters
    source = parameters.source if parameters is not None else FROM_POD_GROUP if gang.crd else FROM_POD
    return {
        "name": gang.id,
        "waitTime": parameters.wait.nanoseconds if parameters is not None else 0,
        "createTime": str(Time.from_unix(parameters.created if parameters is not None else 0.0)),
        "mode": parameters.mode if parameters is not None else MODE_STRICT,
        "gangMatchPolicy": parameters.policy if parameters is not None else args.default_match_policy,
        "minRequiredNumber": parameters.minimum if parameters is not None else 0,
        "totalChildrenNum": parameters.total if parameters is not None else 0,
        "gangGroup": list(gang.group.gang_ids),
        "children": _keys(gang.children),
        "pendingChildren": _keys(gang.pending),
        "waitingForBindChildren": _keys(gang.waiting),
        "boundChildren": _keys(gang.bound),
        "onceResourceSatisfied": gang.group.once_satisfied,
        "gangGroupInfo": _group(gang.group),
        "gangFrom": source,
        "hasGangInit": gang.initialized,
    }


def _group(group: GangGroup) -> dict[str, Any]:
    return {
        "Initialized": True,
        "GangGroupId": group.id,
        "GangGroup": list(group.gang_ids),
        "OnceResourceSatisfied": group.once_satisfied,
        "WaitingGangIDs": _keys(group.waiting_gang_ids),
        "RepresentativePodKey": group.representative,
        "BindingMemberPods": _keys(group.binding_members),
    }


def _keys(names: Any) -> dict[str, dict[str, str]]:
    return {key: {} for key in sorted(names)}
