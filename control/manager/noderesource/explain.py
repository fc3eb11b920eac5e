"""Builds the explanation of one node (`koordlet.api.pages.overcommit`) from the columns of its calculation pass.
Pure."""

from __future__ import annotations

from control.manager.noderesource.batch import NO_LIMIT
from control.manager.noderesource.calculate import RESOURCES, NodeResult
from control.manager.noderesource.columns import BY_MAXIMUM, BY_REQUEST
from control.manager.noderesource.prepare import BATCH, MID, Prepared
from control.manager.noderesource.units import UNIT, Ints
from koordlet.api.encoding.wire import Time
from koordlet.api.pages.overcommit import AS_MEASURED, INTERFERENCE, BatchTerms, MidTerms, OvercommitExplanation
from koordlet.api.sloconfig.colocation import MAX_USAGE_REQUEST, REQUEST, USAGE

_POLICY = {BY_REQUEST: REQUEST, BY_MAXIMUM: MAX_USAGE_REQUEST}


def explained(result: NodeResult, prepared: Prepared, now: float) -> OvercommitExplanation:
    """Terms, holds and reason; without terms where the node overcommits nothing."""
    batch = {name: _batch(result, prepared, column) for column, name in enumerate(RESOURCES) if result.overcommits}
    mid = {name: _mid(result, prepared, column) for column, name in enumerate(RESOURCES) if result.overcommits}
    return OvercommitExplanation(
        reason=result.reason,
        message=result.message or _message(result, batch),
        at=Time.from_unix(now),
        reported=Time.from_unix(result.report.at) if result.report is not None else None,
        batch={name: terms for name, terms in batch.items() if BATCH[0] in prepared.resources},
        mid={name: terms for name, terms in mid.items() if MID[0] in prepared.resources},
        hold=dict(result.holds),
    )


def _batch(result: NodeResult, prepared: Prepared, column: int) -> BatchTerms:
    of, index = result.of, result.index
    assert of is not None

    def units(amounts: Ints) -> int:
        return -(-int(amounts[index, column]) // int(UNIT[column]))

    name = BATCH[column]
    limited = int(of.batch.limit[index, column]) != NO_LIMIT
    third = prepared.third.get(name)
    return BatchTerms(
        policy=_POLICY.get(int(of.settings.policy[index, column]), USAGE),
        capacity=units(of.rows.capacity),
        margin=units(of.batch.margin),
        reserved=units(of.batch.reserved),
        measured_system=units(of.batch.used_by_system),
        system=units(of.batch.system),
        high_request=units(of.rows.high_request),
        high_used=units(of.rows.high_used),
        high=units(of.batch.high),
        limit=units(of.batch.limit) if limited else None,
        calculated=units(of.batch.amount),
        percent=of.percent[index][column],
        normalization=result.plan.ratio if column == 0 and (result.plan.ratio or 1.0) > 1 else None,
        third_party=third.value() if third is not None else 0,
        lent=_value(prepared, name),
    )


def _mid(result: NodeResult, prepared: Prepared, column: int) -> MidTerms:
    of, index = result.of, result.index
    assert of is not None

    def units(amounts: Ints) -> int:
        return -(-int(amounts[index, column]) // int(UNIT[column]))

    return MidTerms(
        reclaimable=units(of.mid.reclaimable),
        unused=units(of.mid.unused),
        unallocated=units(of.mid.unallocated),
        share=units(of.mid.share),
        fixed=units(of.mid.fixed) if int(of.settings.static[index, column]) else None,
        limit=units(of.mid.limit),
        percent=of.percent[index][column],
        lent=_value(prepared, MID[column]),
    )


def _value(prepared: Prepared, name: str) -> int:
    amount = prepared.resources.get(name)
    return amount.value() if amount is not None else 0


def _message(result: NodeResult, batch: dict[str, BatchTerms]) -> str:
    """The message of the condition, one sentence."""
    parts = []
    for name, terms in batch.items():
        parts.append(
            f"batch-{name} {terms.lent} (capacity {terms.capacity}, kept free {terms.margin}, system {terms.system}, "
            f"prod and mid pods {terms.high})"
        )
    terms_text = "; ".join(parts)
    if result.reason == AS_MEASURED:
        return terms_text
    assert result.reason == INTERFERENCE
    held = [f"{hold.percent} % of {name}: {hold.because}" for name, hold in result.holds.items() if hold.percent < 100]
    return f"overcommits only {'; '.join(held)}; {terms_text}"
