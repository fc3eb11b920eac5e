"""Why a node lends what it lends: annotation `node.koordinator.sh/lending`, and the reasons of the Node's condition.

Ours, not Koordinator's. The manager writes both together with the amounts, so that they tell how exactly those amounts
came about; a new leader goes on from `hold`; `koordctl node` prints it. Amounts are milli-cores and bytes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

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
LENDING_REASONS: Final = (AS_MEASURED, INTERFERENCE)
"""The condition is True with these, False with the others: nothing is lent."""


class BatchTerms(Frozen):
    """One resource: `capacity - margin - system - high`, at most `limit`, times `percent`, normalized, less
    `thirdParty`, is `lent`."""

    policy: Annotated[str, doc("usage, request or maxUsageRequest.")] = ""
    capacity: int = written(int)
    margin: Annotated[int, doc("Kept free; negative where more than capacity may be used.")] = written(int)
    reserved: Annotated[int, doc("By kubelet or annotation, whichever is more.")] = written(int)
    measured_system: Annotated[int, doc("Used by the system and by host applications.")] = written(int)
    system: Annotated[int, doc("What counts of these two.")] = written(int)
    high_request: Annotated[int, doc("Requested by pods that are neither batch nor free.")] = written(int)
    high_used: Annotated[int, doc("Used by them.")] = written(int)
    high: Annotated[int, doc("What counts of these two.")] = written(int)
    limit: Annotated[int | None, doc("batch…ThresholdPercent of capacity.")] = None
    calculated: Annotated[int, doc("By the formula.")] = written(int)
    percent: Annotated[int, doc("What interference leaves of it.")] = written(lambda: 100)
    normalization: Annotated[float | None, doc("CPU normalization ratio over 1.")] = None
    third_party: Annotated[int, doc("Lent to others outside Kubernetes.")] = 0
    lent: int = written(int)


class MidTerms(Frozen):
    """One resource: `min(reclaimable, unused) + share`, or `fixed`; at most `limit`, times `percent`, is `lent`."""

    reclaimable: Annotated[int, doc("Predicted to stay unused by prod pods.")] = written(int)
    unused: Annotated[int, doc("Capacity less measured usage.")] = written(int)
    unallocated: Annotated[int, doc("Neither reserved nor requested by prod pods.")] = written(int)
    share: Annotated[int, doc("midUnallocatedPercent of it.")] = written(int)
    fixed: Annotated[int | None, doc("In static mode: what is set aside.")] = None
    limit: int = written(int)
    percent: Annotated[int, doc("What interference leaves of it.")] = written(lambda: 100)
    lent: int = written(int)


class Hold(Frozen):
    """What interference leaves of one resource, and where the streak stands. Times are Unix seconds."""

    percent: Annotated[int, doc("Of the calculated amount that is lent.")] = written(lambda: 100)
    seen: Annotated[float, doc("Time of the last report that was weighed.")] = written(float)
    moved: Annotated[float, doc("When percent last changed.")] = 0.0
    hurt_since: Annotated[float | None, doc("Interference in every report since.")] = None
    calm_since: Annotated[float | None, doc("None in any report since.")] = None
    because: Annotated[str, doc("What was reported last while it hurt.")] = ""


class Lending(Frozen):
    """The whole explanation."""

    reason: str = written(str)
    message: str = written(str)
    at: Annotated[Time | None, doc("When it was worked out.")] = None
    reported: Annotated[Time | None, doc("Time of the NodeMetric it was made from.")] = None
    batch: Annotated[dict[str, BatchTerms], doc("By resource: cpu, memory.")] = msgspec.field(default_factory=dict)
    mid: Annotated[dict[str, MidTerms], doc("By resource: cpu, memory.")] = msgspec.field(default_factory=dict)
    hold: Annotated[dict[str, Hold], doc("By resource, where interference has a say.")] = msgspec.field(
        default_factory=dict
    )


LENDING: Final[Annotation[Lending]] = Annotation(names.ANNOTATION_LENDING, Lending)
