"""Whether a quota admits a pod (spec 06 §5.8). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control.quota.amounts import Amounts, added, exceeding, masked, shown
from control.quota.figures import QuotaFigures
from control.quota.tree import QuotaTree


@dataclass(frozen=True)
class AdmissionRules:
    """Arguments of the scheduler's plugin."""

    by_runtime: bool = True
    """The limit is the runtime; otherwise max."""
    check_parents: bool = False
    """Every ancestor must admit the pod, too."""


def limit(tree: QuotaTree, quota: QuotaFigures, rules: AdmissionRules) -> Amounts:
    """What the quota may use."""
    return tree.runtimes(quota) if rules.by_runtime else quota.max


def _nothing() -> str:
    """The default of `further`."""
    return ""


def refusal(
    tree: QuotaTree,
    quota: QuotaFigures,
    request: Amounts,
    rules: AdmissionRules,
    *,
    non_preemptible: bool,
    further: Callable[[], str] = _nothing,
) -> str:
    """The reason why a pod that is not assigned does not fit; empty if it fits. `request`: its whole request.
    `further()`: reasons of others, after those of the quota itself and before those of its parents."""
    counted = masked(request, quota.max)
    allowed = limit(tree, quota, rules)
    over = exceeding(added(quota.used, counted), allowed)
    if over:
        return (
            f"Insufficient quotas, quotaName: {quota.name}, runtime: {shown(allowed)}, used: {shown(quota.used)}, "
            f"pod's request: {shown(counted)}, exceedDimensions: [{' '.join(over)}]"
        )
    if non_preemptible:
        over = exceeding(added(quota.np_used, counted), quota.min)
        if over:
            return (
                f"Insufficient non-preemptible quotas, quotaName: {quota.name}, min: {shown(quota.min)}, "
                f"nonPreemptibleUsed: {shown(quota.np_used)}, pod's request: {shown(counted)}, "
                f"exceedDimensions: [{' '.join(over)}]"
            )
    reason = further()
    if reason or not rules.check_parents:
        return reason
    return _parent_refusal(tree, quota, counted, rules)


def _parent_refusal(tree: QuotaTree, quota: QuotaFigures, counted: Amounts, rules: AdmissionRules) -> str:
    topology = [quota.name]
    for parent in quota.path()[1:]:
        topology.insert(0, parent.name)
        allowed = limit(tree, parent, rules)
        over = exceeding(masked(added(parent.used, counted), counted), allowed)
        if over:
            return (
                f"Insufficient quotas, quotaNameTopo: [{' '.join(topology)}], runtime: {shown(allowed)}, "
                f"used: {shown(parent.used)}, pod's request: {shown(counted)}, exceedDimensions: [{' '.join(over)}]"
            )
    return ""
