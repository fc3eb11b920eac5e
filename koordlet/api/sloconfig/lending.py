"""`extensions.interference` of a co-location strategy: how far interference lowers what a node lends.

Ours, not Koordinator's. It travels in the strategy's `extensions`, so that it is set for the cluster, for groups of
nodes and for single nodes like the rest. Used by the manager and its ConfigMap webhook; pure.
"""

from __future__ import annotations

from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import WireError, convert
from koordlet.api.sloconfig.bounds import Bound, broken
from koordlet.api.sloconfig.colocation import ColocationStrategy

EXTENSION: Final = "interference"
ANY: Final = "any"
LENT: Final = "lent"


class InterferencePolicy(Frozen):
    """What trouble among a node's pods does to its lending."""

    enable: Annotated[bool, doc("Whether interference lowers what is lent.")] = True
    persist_seconds: Annotated[int, doc("How long trouble, or calm, must have lasted.")] = 120
    step_seconds: Annotated[int, doc("Between two steps.")] = 50
    step_percent: Annotated[int, doc("Of the calculated amount, a step down.")] = 10
    recover_percent: Annotated[int, doc("A step up.")] = 5
    floor_percent: Annotated[int, doc("Never less than this.")] = 40
    min_confidence: Annotated[float, doc("Verdicts below count for nothing, where verdicts are told.")] = 0.5
    culprits: Annotated[str, doc("any, or lent: only where a batch, free or mid pod is most to blame.")] = ANY


DEFAULT: Final = InterferencePolicy()
BOUNDS: Final = (
    Bound("persistSeconds", 0, 86400),
    Bound("stepSeconds", 0, 86400),
    Bound("stepPercent", 1, 100),
    Bound("recoverPercent", 1, 100),
    Bound("floorPercent", 0, 100),
    Bound("minConfidence", 0, 1),
)


class InterferencePolicyError(ValueError):
    """The extension cannot be used. `problems` is field -> reason, paths from the strategy."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{path}: {reason}" for path, reason in problems.items()))
        self.problems = problems


def policy_of(strategy: ColocationStrategy) -> InterferencePolicy:
    """A strategy's policy; the default where it says nothing. Raises InterferencePolicyError."""
    where = f"extensions.{EXTENSION}"
    said = strategy.extensions.get(EXTENSION)
    if said is None:
        return DEFAULT
    try:
        policy: InterferencePolicy = convert(said, InterferencePolicy)
    except WireError as error:
        path = f"{where}.{error.path}" if error.path else where
        raise InterferencePolicyError({path: error.reason}) from error
    problems = broken(policy, BOUNDS)
    if policy.culprits not in (ANY, LENT):
        problems["culprits"] = f"must be {ANY} or {LENT}"
    if problems:
        raise InterferencePolicyError({f"{where}.{path}": reason for path, reason in problems.items()})
    return policy
