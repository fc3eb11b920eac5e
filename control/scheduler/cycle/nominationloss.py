"""What happens to a pod's nomination when the pod loses the node that it held, by the rejecting plugin (spec 05 §5.6).

Three plugin names stand for rejections at Permit on behalf of a job, whatever plugin schedules jobs.
"""

from __future__ import annotations

from typing import Final

from control.scheduler.framework.status import Code, PluginStatus

JOB_REJECT: Final = "JobRejectPlugin"
"""Rejects members because another member failed. Nominations stay as they were."""
JOB_SUCCESS: Final = "JobPreemptionSuccessPlugin"
"""Rejects waiting members after a successful preemption. Each is nominated to the node that it held."""
JOB_FAILURE: Final = "JobPreemptionFailurePlugin"
"""Rejects waiting members when preemption cannot help. Nominations are removed."""


def nomination_after_loss(status: PluginStatus, node: str) -> str | None:
    """The nomination of a pod that was rejected while it held `node`: `node`, "" (none), or None (unchanged).

    Depends on the rejecting plugin in all three cases (spec 05 §17, D2).
    """
    if status.code is Code.UNSCHEDULABLE:
        if status.plugin == JOB_SUCCESS:
            return node
        if status.plugin == JOB_REJECT:
            return None
    return ""
