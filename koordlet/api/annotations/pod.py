"""Pod annotations and labels that control eviction and quality of service (spec 01 §5.1)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from koordlet.api import names
from koordlet.api.annotations._base import (
    HOSTILE_PODS,
    PER_CONTAINER,
    SETTING,
    Annotation,
    DefaultAnnotation,
    Map,
    integer,
)
from koordlet.api.core import Pod
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.quantity import ZERO, Quantity, QuantityError
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import BATCH_RESOURCES
from koordlet.api.sloconfig.node import CPUBurstConfig
from koordlet.api.sloconfig.resourceqos import CPUQOS, PodBlkIOQOS, PodMemoryQOS

MIN_OOM_SCORE: Final = -1000
"""The kernel never kills a process of this score."""
MAX_OOM_SCORE: Final = 1000
CORE_SCHED_NONE: Final = "none"
CORE_SCHED_EXCLUSIVE: Final = "exclusive"

CPU_BURST: Final[Annotation[CPUBurstConfig]] = Annotation(names.ANNOTATION_CPU_BURST, CPUBurstConfig, limits=SETTING)
MEMORY_QOS: Final[Annotation[PodMemoryQOS]] = Annotation(names.ANNOTATION_MEMORY_QOS, PodMemoryQOS, limits=SETTING)
BLKIO_QOS: Final[Annotation[PodBlkIOQOS]] = Annotation(names.ANNOTATION_BLKIO_QOS, PodBlkIOQOS, limits=SETTING)
_EVICTION_POLICY: Final[Annotation[list[str]]] = Annotation(names.ANNOTATION_EVICTION_POLICY, list[str], limits=SETTING)
_CPU_QOS: Final[Annotation[CPUQOS]] = Annotation(names.ANNOTATION_CPU_QOS, CPUQOS, limits=SETTING)


def cpu_qos(annotations: Map) -> CPUQOS | None:
    """`cpuQOS`. Raises WireError when malformed or when the group identity is outside [-1, 2]."""
    qos = _CPU_QOS.get(annotations)
    if qos and qos.group_identity is not None and not -1 <= qos.group_identity <= 2:
        where = f"annotation {_CPU_QOS.key}"
        raise WireError(f"{qos.group_identity} is not within -1 and 2", where=where, path="groupIdentity")
    return qos


def eviction_enabled(labels: Map) -> bool:
    """Whether usage-based and request-based eviction may evict the pod. Does not apply to the BE evictions."""
    return labels.get(names.LABEL_EVICTION_ENABLED) == names.TRUE


def eviction_priority(annotations: Map) -> int:
    """Eviction order, lower first; 0 when missing. Raises WireError; callers then use 0 and log a warning."""
    return integer(annotations, names.ANNOTATION_EVICTION_PRIORITY, bits=32) or 0


def eviction_allowed(annotations: Map, feature: str) -> bool:
    """Whether `eviction-policy` allows a feature to evict the pod; missing allows all, malformed allows none."""
    try:
        allowed = _EVICTION_POLICY.get(annotations)
    except WireError:
        return False
    return allowed is None or feature in allowed


class NetworkQOSSpec(Frozen):
    """The value of `networkQOS`: quantities in bit/s."""

    ingress_limit: str = written(str)
    egress_limit: str = written(str)


class NetworkLimits(NamedTuple):
    """Limits in bytes per second; 0 is no limit."""

    ingress: int
    egress: int


NETWORK_QOS: Final[Annotation[NetworkQOSSpec]] = Annotation(
    names.ANNOTATION_NETWORK_QOS, NetworkQOSSpec, limits=SETTING
)


def network_limits(annotations: Map) -> NetworkLimits | None:
    """The pod's bandwidth limits, None without the annotation. A missing field is no limit (spec 01 §9 A7).

    Raises WireError for JSON or quantities that are malformed or negative.
    """
    spec = NETWORK_QOS.get(annotations)
    if spec is None:
        return None
    return NetworkLimits(_bytes(spec.ingress_limit, "ingressLimit"), _bytes(spec.egress_limit, "egressLimit"))


def _bytes(text: str, field: str) -> int:
    try:
        bits = Quantity(text or "0")
        if bits < ZERO:
            raise QuantityError(f"{text} is negative")
    except QuantityError as error:
        raise WireError(str(error), where=f"annotation {names.ANNOTATION_NETWORK_QOS}", path=field) from error
    return bits.value() // 8


def core_sched_group(labels: Map) -> str:
    """The core-scheduling group id, empty when missing."""
    return labels.get(names.LABEL_CORE_SCHED_GROUP_ID, "")


def core_sched_policy(labels: Map) -> str:
    """`none`, `exclusive`, or empty for the default policy."""
    policy = labels.get(names.LABEL_CORE_SCHED_POLICY, "")
    return policy if policy in (CORE_SCHED_NONE, CORE_SCHED_EXCLUSIVE) else ""


class PodOOMScores(NamedTuple):
    """The values of `oom_score_adj` by container, and for the pod's other containers (None: not changed).

    `refused` lists the values out of range: container names, or the key of the pod-level annotation.
    """

    by_container: dict[str, int]
    for_others: int | None
    refused: tuple[str, ...]

    def of(self, container: str) -> int | None:
        """The score of one container, None: not changed."""
        if container in self.refused:
            return None
        return self.by_container.get(container, self.for_others)


_OOM_SPEC: Final[Annotation[dict[str, int]]] = Annotation(
    names.ANNOTATION_OOM_SCORE_ADJ_SPEC, dict[str, int], limits=PER_CONTAINER
)


def oom_scores(annotations: Map, *, lowest: int = MIN_OOM_SCORE) -> PodOOMScores | None:
    """Scores of the pod's containers, None without the annotations.

    The per-container annotation takes precedence. Raises WireError when it is malformed; then nothing is applied, not
    even the pod-level value. A value outside [lowest, 1000] is ignored.
    """
    by_container, refused_names = _within(annotations.get(_OOM_SPEC.key), lowest)
    refused = list(refused_names)
    try:
        for_others = integer(annotations, names.ANNOTATION_OOM_SCORE_ADJ, low=lowest, high=MAX_OOM_SCORE)
    except WireError:
        for_others = None
        refused.append(names.ANNOTATION_OOM_SCORE_ADJ)
    if not by_container and for_others is None and not refused:
        return None
    return PodOOMScores(by_container, for_others, tuple(refused))


@lru_cache(maxsize=HOSTILE_PODS)
def _within(text: str | None, lowest: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """The scores of an annotation within the range, and the containers of the others. Cached, because the pods of a
    node are read in every round."""
    spec = {} if text is None else _OOM_SPEC.get({_OOM_SPEC.key: text}) or {}
    by_container = {name: score for name, score in spec.items() if lowest <= score <= MAX_OOM_SCORE}
    return by_container, tuple(name for name in spec if name not in by_container)


class LLCSchemata(Frozen):
    """A range of last-level cache in percent: two numbers, or none."""

    range: list[int] = []


class LLCSchemataPerCache(LLCSchemata):
    """The range of one cache; applied after the range common to all caches."""

    cache_id: int = msgspec.field(default=0, name="cacheID")


class LLC(Frozen):
    """Last-level cache of a pod."""

    schemata: LLCSchemata = msgspec.field(default_factory=LLCSchemata)
    schemata_per_cache: list[LLCSchemataPerCache] = []


class MBSchemata(Frozen):
    """Memory bandwidth in percent; 0: not set."""

    percent: int = 0


class MBSchemataPerCache(MBSchemata):
    """The bandwidth of one cache; applied after the bandwidth common to all caches."""

    cache_id: int = msgspec.field(default=0, name="cacheID")


class MB(Frozen):
    """Memory bandwidth of a pod."""

    schemata: MBSchemata = msgspec.field(default_factory=MBSchemata)
    schemata_per_cache: list[MBSchemataPerCache] = []


class Resctrl(Frozen):
    """Cache and memory bandwidth of a pod."""

    llc: LLC = msgspec.field(default_factory=LLC)
    mb: MB = msgspec.field(default_factory=MB)


RESCTRL: Final[Annotation[Resctrl]] = Annotation(names.ANNOTATION_RESCTRL, Resctrl, limits=SETTING)


class ExtendedResourceContainer(Frozen):
    """Batch resources of one container, as in its manifest."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class ExtendedResourceSpec(Frozen):
    """Batch resources by container name, for koordlet: the kubelet drops extended requests."""

    containers: dict[str, ExtendedResourceContainer] = {}


EXTENDED_RESOURCE_SPEC: Final[DefaultAnnotation[ExtendedResourceSpec]] = DefaultAnnotation(
    names.ANNOTATION_EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec, ExtendedResourceSpec, limits=PER_CONTAINER
)


def extended_resources(pod: Pod) -> ExtendedResourceSpec:
    """The desired value of a pod's annotation: batch resources of its regular containers only."""
    containers = {}
    for container in pod.spec.containers:
        limits = {name: q for name, q in container.resources.limits.items() if name in BATCH_RESOURCES}
        requests = {name: q for name, q in container.resources.requests.items() if name in BATCH_RESOURCES}
        if limits or requests:
            containers[container.name] = ExtendedResourceContainer(limits=limits, requests=requests)
    return ExtendedResourceSpec(containers=containers)


def extended_resource_update(pod: Pod) -> str | None:
    """The annotation's new text, or None when it is up to date (or missing and not needed).

    A malformed or different annotation is rewritten; one that is no longer needed becomes `{}`.
    """
    desired = extended_resources(pod)
    annotations = pod.metadata.annotations
    if EXTENDED_RESOURCE_SPEC.key not in annotations:
        return EXTENDED_RESOURCE_SPEC.text(desired) if desired.containers else None
    try:
        if EXTENDED_RESOURCE_SPEC.get(annotations) == desired:
            return None
    except WireError:
        return EXTENDED_RESOURCE_SPEC.text(desired)
    return EXTENDED_RESOURCE_SPEC.text(desired)


def replaced_resources(annotations: Map) -> dict[str, str | None]:
    """`replace-resources`: old name -> new name, None: removed. Entries without exactly one colon are ignored."""
    result: dict[str, str | None] = {}
    for entry in annotations.get(names.ANNOTATION_REPLACE_RESOURCES, "").split(","):
        if entry.count(":") == 1:
            old, new = (part.strip() for part in entry.split(":"))
            if old:
                result[old] = new or None
    return result


def apply_replaced(resources: dict[str, Quantity], replaced: dict[str, str | None]) -> dict[str, Quantity]:
    """A resource list with names replaced or removed; the unit of cpu under a new name is milli-cores."""
    result = dict(resources)
    for old, new in replaced.items():
        if old in result:
            amount = result.pop(old)
            if new is not None:
                result[new] = Quantity.of(amount.milli_value()) if old == "cpu" and new != "cpu" else amount
    return result
