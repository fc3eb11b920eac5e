"""`extensions.interference` of a co-location strategy: how far interference reduces a node's overcommitted resources.

An addition to Koordinator. It is part of the strategy's `extensions`, so it can be set for the cluster, for groups of
nodes and for single nodes like the other fields. Used by the manager and its ConfigMap webhook. Pure.
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
CULPRITS_OVERCOMMITTED: Final = "lent"


class InterferencePolicy(Frozen):
    """How interference among a node's pods reduces its batch and mid resources."""

    enable: Annotated[bool, doc("Whether interference reduces batch and mid resources.")] = True
    persist_seconds: Annotated[int, doc("Time that interference, or its absence, must last before a step.")] = 120
    step_seconds: Annotated[int, doc("Minimum time between two steps.")] = 50
    step_percent: Annotated[int, doc("Reduction per step, in percent of the calculated amount.")] = 10
    recover_percent: Annotated[int, doc("Increase per step, in percent of the calculated amount.")] = 5
    floor_percent: Annotated[int, doc("Lower limit, in percent of the calculated amount.")] = 40
    min_confidence: Annotated[float, doc("Verdicts with a lower confidence are ignored.")] = 0.5
    culprits: Annotated[
        str, doc("any; or lent: only interference whose main culprit is a batch, free or mid pod counts.")
    ] = ANY


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
    """The extension is invalid. `problems` is field path, relative to the strategy -> reason."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{path}: {reason}" for path, reason in problems.items()))
        self.problems = problems


def policy_of(strategy: ColocationStrategy) -> InterferencePolicy:
    """The policy of a strategy; the default if the extension is absent. Raises InterferencePolicyError."""
    where = f"extensions.{EXTENSION}"
    extension = strategy.extensions.get(EXTENSION)
    if extension is None:
        return DEFAULT
    try:
        policy: InterferencePolicy = convert(extension, InterferencePolicy)
    except WireError as error:
        path = f"{where}.{error.path}" if error.path else where
        raise InterferencePolicyError({path: error.reason}) from error
    problems = broken(policy, BOUNDS)
    if policy.culprits not in (ANY, CULPRITS_OVERCOMMITTED):
        problems["culprits"] = f"must be {ANY} or {CULPRITS_OVERCOMMITTED}"
    if problems:
        raise InterferencePolicyError({f"{where}.{path}": reason for path, reason in problems.items()})
    return policy
