"""`interferenceStrategy.actions`: what koordlet does about best-effort pods that hurt others. Off by default.

Part of `interference.InterferenceStrategy`, cluster-wide and by node like everything there. What the numbers mean to
the strategy that reads them is in docs/interference.md.
"""

from __future__ import annotations

from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.sloconfig.bounds import Bound

REPORT: Final = "report"
"""Say what would be done, and do nothing; for every resource."""
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
"""Resource -> policies; the first is the default. What is not here is detected and reported only."""


class InterferenceAction(Frozen):
    """How the culprits of one resource are held back; percentages are of what a culprit had when it began."""

    enable: Annotated[bool | None, doc("Whether anything is done, default false.")] = None
    policy: Annotated[str, doc("cpu: quota. memory: auto, high, limit. io: weight. network: class. Or report.")] = ""
    step_percent: Annotated[int | None, doc("Taken away in one step.", minimum=1, maximum=50)] = None
    floor_percent: Annotated[int | None, doc("Always left to the culprit.", minimum=1, maximum=100)] = None
    interval_seconds: Annotated[int | None, doc("Between two steps.", minimum=1, maximum=600)] = None
    release_seconds: Annotated[
        int | None, doc("Without anybody hurt before a step is given back, and between two.", minimum=1, maximum=3600)
    ] = None
    evict_after_seconds: Annotated[
        int | None, doc("At the floor with somebody still hurt before the culprit is evicted; 0 is never.", minimum=0)
    ] = None


class InterferenceActions(Frozen):
    """What is done about the best-effort culprits of verdicts that are sure enough."""

    min_confidence_percent: Annotated[
        int | None, doc("Confidence of a verdict below which nothing is done.", minimum=0, maximum=100)
    ] = None
    min_share_percent: Annotated[
        int | None, doc("Part of the victim's waiting below which a culprit is let be.", minimum=1, maximum=100)
    ] = None
    cpu: Annotated[InterferenceAction | None, doc("Quota of the culprit pod.")] = None
    memory: Annotated[InterferenceAction | None, doc("memory.high or the limit of the culprit pod.")] = None
    io: Annotated[InterferenceAction | None, doc("Weight and limit of the culprit pod.")] = None
    network: Annotated[InterferenceAction | None, doc("Traffic class of the culprit pod.")] = None


def _action(policy: str, floor: int, interval: int) -> InterferenceAction:
    return InterferenceAction(
        enable=False,
        policy=policy,
        step_percent=20,
        floor_percent=floor,
        interval_seconds=interval,
        release_seconds=30,
        evict_after_seconds=0,
    )


DEFAULT: Final = InterferenceActions(
    min_confidence_percent=30,
    min_share_percent=20,
    cpu=_action(QUOTA, 10, 3),
    memory=_action(AUTO, 50, 5),
    io=_action(WEIGHT, 10, 3),
    network=_action(CLASS, 20, 3),
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


def problems(actions: InterferenceActions | None) -> dict[str, str]:
    """Field path -> reason for policies that no resource has; numbers are in `BOUNDS`."""
    found = {}
    for name, policies in POLICIES.items():
        action: InterferenceAction | None = getattr(actions, name) if actions is not None else None
        if action is not None and action.policy and action.policy not in policies:
            found[f"actions.{name}.policy"] = f"{action.policy!r} is none of {', '.join(policies)}"
    return found


def enabled(actions: InterferenceActions | None) -> dict[str, InterferenceAction]:
    """Resource -> what is switched on."""
    given = {name: getattr(actions, name, None) for name in POLICIES}
    return {name: action for name, action in given.items() if action is not None and action.enable}
