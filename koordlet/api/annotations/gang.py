"""Gang scheduling: annotations and labels of pods and PodGroups (spec 01 §5.6)."""

from __future__ import annotations

from typing import Final

from koordlet.api import names
from koordlet.api.annotations._base import SETTING, Annotation, Map, TextLimits, integer
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.wire import Duration, WireError

MODE_STRICT: Final = "Strict"
MODE_NON_STRICT: Final = "NonStrict"
MATCH_ONLY_WAITING: Final = "only-waiting"
MATCH_WAITING_AND_RUNNING: Final = "waiting-and-running"
MATCH_ONCE_SATISFIED: Final = "once-satisfied"
MUST_GATHER: Final = "MustGather"
DEFAULT_WAITING_TIME: Final = Duration("600s")


class GatherStrategy(Frozen):
    """How closely a gang must be placed on one network layer."""

    layer: str = written(str)
    strategy: str = written(str)
    pod_count_multiple: int = 0


class NetworkTopologySpec(Frozen):
    """Network topology requirements of a gang."""

    gather_strategy: list[GatherStrategy] = []


NETWORK_TOPOLOGY_SPEC: Final[Annotation[NetworkTopologySpec]] = Annotation(
    names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC, NetworkTopologySpec, limits=SETTING
)
GROUPS_LIMITS: Final = TextLimits(chars=64 << 10, items=256)
"""Gangs of a group: every gang keeps the ids of its group, and the scheduler follows them."""
_GROUPS: Final[Annotation[list[str]]] = Annotation(names.ANNOTATION_GANG_GROUPS, list[str], limits=GROUPS_LIMITS)


def gang_name(labels: Map, annotations: Map) -> str:
    """The pod's gang: PodGroup label, its deprecated form, then the annotation; empty for none."""
    return (
        labels.get(names.LABEL_POD_GROUP)
        or labels.get(names.LABEL_POD_GROUP_NAME_DEPRECATED)
        or annotations.get(names.ANNOTATION_GANG_NAME, "")
    )


def min_available(labels: Map, annotations: Map) -> int | None:
    """Number of members that must be schedulable, None when missing. Raises WireError.

    A pod with a missing or malformed value does not initialise the gang.
    """
    value = integer(annotations, names.ANNOTATION_GANG_MIN_AVAILABLE, bits=32)
    if value is None:
        value = integer(labels, names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED, bits=32)
    return value


def total_number(annotations: Map, minimum: int) -> int:
    """Number of members of the gang; `minimum` when it is missing, invalid or smaller."""
    try:
        total = integer(annotations, names.ANNOTATION_GANG_TOTAL_NUMBER)
    except WireError:
        total = None
    return minimum if total is None else max(total, minimum)


def mode(annotations: Map) -> str:
    """`NonStrict` if the annotation has exactly this value, else `Strict`."""
    return MODE_NON_STRICT if annotations.get(names.ANNOTATION_GANG_MODE) == MODE_NON_STRICT else MODE_STRICT


def match_policy(annotations: Map, default: str = MATCH_ONCE_SATISFIED) -> str:
    """Which members count; `default`, the scheduler's own setting, for missing and invalid values."""
    text = annotations.get(names.ANNOTATION_GANG_MATCH_POLICY) or annotations.get(
        names.ANNOTATION_POD_GROUP_MATCH_POLICY, ""
    )
    policies = (MATCH_ONLY_WAITING, MATCH_WAITING_AND_RUNNING, MATCH_ONCE_SATISFIED)
    return text if text in policies else default


def waiting_time(annotations: Map, default: Duration = DEFAULT_WAITING_TIME) -> Duration:
    """Time that members wait for each other; `default` for missing, invalid and non-positive values."""
    try:
        duration = Duration(annotations.get(names.ANNOTATION_GANG_WAITING_TIME, "0"))
    except ValueError:
        return default
    return duration if duration.nanoseconds > 0 else default


def groups(annotations: Map, itself: str) -> list[str]:
    """The gangs (`namespace/name`) scheduled together; only `itself` when missing, invalid or too long."""
    try:
        return _GROUPS.get(annotations) or [itself]
    except WireError:
        return [itself]


def network_index(annotations: Map) -> int | None:
    """The pod's rank in the network, None when missing. Raises WireError; callers then treat it as missing."""
    return integer(annotations, names.ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX)


def network_order(name: str, annotations: Map) -> tuple[int, int, str]:
    """Sort key of members: pods with a rank by rank, then the others; equal ones by name."""
    try:
        index = network_index(annotations)
    except WireError:
        index = None
    return (0, index, name) if index is not None and index >= 0 else (1, 0, name)
