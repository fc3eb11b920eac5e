"""What becomes of a pod's nomination when it loses a node that it was given, by who took it away (spec 05 §5.6).

Three rejectors at Permit speak for a job, in the name of whichever plugin schedules jobs; `Loop` asks `takeover`.
"""

from __future__ import annotations

from typing import Final

from control.scheduler.framework.status import Code, Status

JOB_REJECT: Final = "JobRejectPlugin"
"""Rejects members because of another one; a nomination stays as it was."""
JOB_SUCCESS: Final = "JobPreemptionSuccessPlugin"
"""Rejects waiting members after preemption: each is nominated to the node that it had."""
JOB_FAILURE: Final = "JobPreemptionFailurePlugin"
"""Rejects waiting members when preemption can't help: nominations are dropped."""


def takeover(status: Status, node: str) -> str | None:
    """The nomination of a pod that was rejected while it held `node`: that, "" (none), or None (as it was).

    Goes by who rejected the pod, for all three alike (spec 05 §17, D2).
    """
    if status.code is Code.UNSCHEDULABLE:
        if status.plugin == JOB_SUCCESS:
            return node
        if status.plugin == JOB_REJECT:
            return None
    return ""
