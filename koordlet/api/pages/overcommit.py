"""Explanation of a node's batch and mid resources: annotation `node.koordinator.sh/lending`, and condition reasons.

An addition to Koordinator. The manager writes the annotation and the condition `ColocationLending` in the same patch as
the amounts, so they always explain the current amounts. A new leader continues from `hold`. `koordctl node` prints the
annotation. Amounts are milli-cores and bytes.
"""

from __future__ import annotations

from typing import Annotated, Final

from koordlet.api import names
from koordlet.api.annotations._base import Annotation
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.wire import Time

AS_MEASURED: Final = "AsMeasured"
INTERFERENCE: Final = "InterferencePersists"
STALE: Final = "NodeMetricStale"
MISSING: Final = "NodeMetricMissing"
DISABLED: Final = "ColocationDisabled"
OVERCOMMIT_REASONS: Final = (AS_MEASURED, INTERFERENCE)
"""The condition is True with these reasons; False with the others, where the node has no batch and mid resources."""


class BatchTerms(Frozen):
    """The batch formula for one resource: `lent` = `capacity - margin - system - high`, at most `limit`, times
    `percent`, times `normalization`, minus `third_party`."""

    policy: Annotated[str, doc("usage, request or maxUsageRequest.")] = ""
    capacity: int = written(int)
    margin: Annotated[int, doc("Kept free; negative if the reclaim threshold is above 100 %.")] = written(int)
    reserved: Annotated[int, doc("Reserved by the kubelet or by annotation, whichever is larger.")] = written(int)
    measured_system: Annotated[int, doc("Used by the system and by host applications.")] = written(int)
    system: Annotated[int, doc("Amount subtracted for the system: reserved, or the larger of both.")] = written(int)
    high_request: Annotated[int, doc("Requested by pods that are neither batch nor free.")] = written(int)
    high_used: Annotated[int, doc("Used by pods that are neither batch nor free.")] = written(int)
    high: Annotated[int, doc("Amount subtracted for these pods, by policy.")] = written(int)
    limit: Annotated[int | None, doc("batch…ThresholdPercent of capacity.")] = None
    calculated: Annotated[int, doc("Result of the formula before interference.")] = written(int)
    percent: Annotated[int, doc("Percentage of calculated that remains after interference.")] = written(lambda: 100)
    normalization: Annotated[float | None, doc("CPU normalization ratio if above 1.")] = None
    third_party: Annotated[int, doc("Allocated to third parties outside Kubernetes.")] = 0
    lent: Annotated[int, doc("The node's batch resource.")] = written(int)


class MidTerms(Frozen):
    """The mid formula for one resource: `lent` = `min(reclaimable, unused) + share`, or `fixed`; at most `limit`, times
    `percent`."""

    reclaimable: Annotated[int, doc("Requests of prod pods predicted to stay unused.")] = written(int)
    unused: Annotated[int, doc("Capacity minus measured usage.")] = written(int)
    unallocated: Annotated[int, doc("Neither reserved nor requested by prod pods.")] = written(int)
    share: Annotated[int, doc("midUnallocatedPercent of unallocated.")] = written(int)
    fixed: Annotated[int | None, doc("The amount in static mode.")] = None
    limit: int = written(int)
    percent: Annotated[int, doc("Percentage that remains after interference.")] = written(lambda: 100)
    lent: Annotated[int, doc("The node's mid resource.")] = written(int)


class Hold(Frozen):
    """How far interference reduces one resource, and the state of the step control. Times are Unix seconds."""

    percent: Annotated[int, doc("Percentage of the calculated amount that remains.")] = written(lambda: 100)
    seen: Annotated[float, doc("Time of the last report that was processed.")] = written(float)
    moved: Annotated[float, doc("Time when percent last changed.")] = 0.0
    hurt_since: Annotated[float | None, doc("Every report since then had interference.")] = None
    calm_since: Annotated[float | None, doc("No report since then had interference.")] = None
    because: Annotated[str, doc("Description of the last reported interference.")] = ""


class OvercommitExplanation(Frozen):
    """The value of the annotation."""

    reason: str = written(str)
    message: str = written(str)
    at: Annotated[Time | None, doc("Time of the calculation.")] = None
    reported: Annotated[Time | None, doc("Time of the NodeMetric it is based on.")] = None
    batch: Annotated[dict[str, BatchTerms], doc("By resource: cpu, memory.")] = {}
    mid: Annotated[dict[str, MidTerms], doc("By resource: cpu, memory.")] = {}
    hold: Annotated[dict[str, Hold], doc("By resource, where interference was reported.")] = {}


OVERCOMMIT: Final[Annotation[OvercommitExplanation]] = Annotation(names.ANNOTATION_OVERCOMMIT, OvercommitExplanation)
