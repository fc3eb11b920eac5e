"""`interferenceStrategy.actions`: how koordlet throttles best-effort pods that delay others. Off by default.

Part of `interference.InterferenceStrategy`, so it is set for the cluster and per node like its other fields. The QoS
strategy that uses these numbers is described in docs/interference.md.
"""

from __future__ import annotations

from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.sloconfig.bounds import Bound

REPORT: Final = "report"
"""Only report the action, without taking it; for every resource."""
AUTO: Final = "auto"
QUOTA: Final = "quota"
HIGH: Final = "high"
LIMIT: Final = "limit"
WEIGHT: Final = "weight"
CLASS: Final = "class"
POLICIES: Final = {
    "cpu": (QUOTA, REPORT),
    "memory": (AUTO, HIGH, LIMIT, REPORT),
    "io": (WEIGHT, REPORT),
    "network": (CLASS, REPORT),
}
"""Resource -> policies, the first is the default. Other resources are only detected and reported."""


class InterferenceAction(Frozen):
    """How the culprits of one resource are throttled; percentages are of the amount before throttling."""

    enable: Annotated[bool | None, doc("Whether culprits are throttled, default false.")] = None
    policy: Annotated[str, doc("cpu: quota. memory: auto, high, limit. io: weight. network: class. Or report.")] = ""
    step_percent: Annotated[int | None, doc("Reduction per step.", minimum=1, maximum=50)] = None
    floor_percent: Annotated[int | None, doc("Lower limit.", minimum=1, maximum=100)] = None
    interval_seconds: Annotated[int | None, doc("Time between two steps.", minimum=1, maximum=600)] = None
    release_seconds: Annotated[
        int | None,
        doc("Time without victims before a step is reverted, and between two reversions.", minimum=1, maximum=3600),
    ] = None
    evict_after_seconds: Annotated[
        int | None,
        doc("Time at the lower limit with victims before the culprit is evicted; 0: never.", minimum=0),
    ] = None


class InterferenceActionsConfig(Frozen):
    """Actions on the best-effort culprits of verdicts with sufficient confidence."""

    min_confidence_percent: Annotated[
        int | None, doc("Minimum confidence of a verdict for an action.", minimum=0, maximum=100)
    ] = None
    min_share_percent: Annotated[
        int | None,
        doc("Minimum share of the victim's waiting time for an action on a culprit.", minimum=1, maximum=100),
    ] = None
    cpu: Annotated[InterferenceAction | None, doc("Quota of the culprit pod.")] = None
    memory: Annotated[InterferenceAction | None, doc("memory.high or the limit of the culprit pod.")] = None
    io: Annotated[InterferenceAction | None, doc("Weight and limit of the culprit pod.")] = None
    network: Annotated[InterferenceAction | None, doc("Traffic class of the culprit pod.")] = None


def _action(policy: str, floor: int, interval: int, release: int) -> InterferenceAction:
    return InterferenceAction(
        enable=False,
        policy=policy,
        step_percent=20,
        floor_percent=floor,
        interval_seconds=interval,
        release_seconds=release,
        evict_after_seconds=0,
    )


DEFAULT: Final = InterferenceActionsConfig(
    min_confidence_percent=30,
    min_share_percent=20,
    cpu=_action(QUOTA, 10, 3, 10),
    memory=_action(AUTO, 50, 5, 30),
    io=_action(WEIGHT, 10, 3, 30),
    network=_action(CLASS, 20, 3, 30),
)

BOUNDS: Final = (
    Bound("actions.minConfidencePercent", 0, 100),
    Bound("actions.minSharePercent", 1, 100),
    *(
        bound._replace(path=f"actions.{name}.{bound.path}")
        for name in POLICIES
        for bound in (
            Bound("stepPercent", 1, 50),
            Bound("floorPercent", 1, 100),
            Bound("intervalSeconds", 1, 600),
            Bound("releaseSeconds", 1, 3600),
            Bound("evictAfterSeconds", minimum=0),
        )
    ),
)


def problems(actions: InterferenceActionsConfig | None) -> dict[str, str]:
    """Field path -> reason for invalid policies; numbers are checked with `BOUNDS`."""
    reasons = {}
    for name, policies in POLICIES.items():
        action: InterferenceAction | None = getattr(actions, name) if actions is not None else None
        if action is not None and action.policy and action.policy not in policies:
            reasons[f"actions.{name}.policy"] = f"{action.policy!r} is not one of {', '.join(policies)}"
    return reasons


def enabled(actions: InterferenceActionsConfig | None) -> dict[str, InterferenceAction]:
    """Resource -> action, for enabled actions."""
    by_resource = {name: getattr(actions, name, None) for name in POLICIES}
    return {name: action for name, action in by_resource.items() if action is not None and action.enable}
