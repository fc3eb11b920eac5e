"""The pod labels and annotations that root code acts on, or that let a pod use resources of others, with their trusted
users. Data; the webhook rule and the table in docs/security.md are made from it.

Root code is koordlet, koord-runtime-proxy and the device plugins of vendors. Tenants write pods, so a key is in one of
the two tables: `TRUSTED` for keys that would give a tenant something that its requests and its classes do not, and
`TENANT` for keys that only restrict the pod, or are bounded by what the pod is charged for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from koordlet.api import names, qos
from koordlet.api.annotations import pod as pod_annotations
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError

Kind = Literal["label", "annotation"]
Component = Literal["scheduler", "manager"]

TENANT_SCORES: Final = range(1001)
"""OOM scores that a tenant may set: 0 is the kernel's default, more makes the container an earlier victim."""


@dataclass(frozen=True)
class TenantRule:
    """What users that are not trusted with a key may set. `allows` gets the new text, or None for a removed key."""

    text: str
    allows: Callable[[str | None, Pod], bool]


@dataclass(frozen=True)
class TrustedKey:
    """One key. `setters` are the components that may set any value; `effect` is what root code does with it."""

    key: str
    kind: Kind
    setters: tuple[Component, ...]
    tenant: TenantRule
    effect: str

    @property
    def path(self) -> str:
        """The path of the field in errors."""
        return f"{self.kind}s.{self.key}"


@dataclass(frozen=True)
class TenantKey:
    """A key that any user may set, and the reason."""

    key: str
    kind: Kind
    reason: str


def _scores(text: str | None, _: Pod) -> bool:
    return _parsed(names.ANNOTATION_OOM_SCORE_ADJ, text)


def _scores_by_container(text: str | None, _: Pod) -> bool:
    return _parsed(names.ANNOTATION_OOM_SCORE_ADJ_SPEC, text)


def _parsed(key: str, text: str | None) -> bool:
    """Whether koordlet would read only tenant scores from the annotation; text that it refuses has no effect."""
    if text is None:
        return True
    try:
        scores = pod_annotations.oom_scores({key: text})
    except WireError:
        return True
    if scores is None:
        return True
    containers = [*scores.by_container.values(), *([] if scores.for_others is None else [scores.for_others])]
    return all(score in TENANT_SCORES for score in containers)


def _extended_resources(text: str | None, pod: Pod) -> bool:
    """Whether the annotation has the batch resources of the pod's containers."""
    desired = pod_annotations.extended_resources(pod)
    if text is None:
        return not desired.containers
    try:
        return pod_annotations.EXTENDED_RESOURCE_SPEC.get({names.ANNOTATION_EXTENDED_RESOURCE_SPEC: text}) == desired
    except WireError:
        return False


NOTHING: Final = TenantRule("nothing", lambda _text, _pod: False)
_COMMON_CLASSES: Final = TenantRule(
    "every value but `LSE` and `SYSTEM`", lambda text, _: qos.parse_qos(text or "") not in (qos.LSE, qos.SYSTEM)
)
_COOKIES: Final = TenantRule("every value but `none`", lambda text, _: text != pod_annotations.CORE_SCHED_NONE)
_NOT_IGNORING: Final = TenantRule("every value but `true`", lambda text, _: text != names.TRUE)
_NOT_RESERVING: Final = TenantRule(
    "every value but `Reservation`", lambda text, _: text != names.OPERATING_MODE_RESERVATION
)
_SCORES: Final = TenantRule("0 to 1000", _scores)
_CONTAINER_SCORES: Final = TenantRule("0 to 1000 for each container", _scores_by_container)
_DERIVED: Final = TenantRule("the batch resources of the pod's containers", _extended_resources)

_QUOTAS: Final = TenantRule(
    f"every value but `{names.SYSTEM_QUOTA}` and `{names.ROOT_QUOTA}`",
    lambda text, _: text not in (names.SYSTEM_QUOTA, names.ROOT_QUOTA),
)

_SCHEDULER: Final[tuple[Component, ...]] = ("scheduler", "manager")
_MANAGER: Final[tuple[Component, ...]] = ("manager",)


def _annotation(key: str, effect: str, setters: tuple[Component, ...], tenant: TenantRule = NOTHING) -> TrustedKey:
    return TrustedKey(key, "annotation", setters, tenant, effect)


def _label(key: str, effect: str, setters: tuple[Component, ...], tenant: TenantRule = NOTHING) -> TrustedKey:
    return TrustedKey(key, "label", setters, tenant, effect)


TRUSTED: Final[tuple[TrustedKey, ...]] = (
    # results of scheduling
    _annotation(
        names.ANNOTATION_RESOURCE_STATUS, "the pod's CPUs; other pods are excluded from CPUs of LSE pods", _SCHEDULER
    ),
    _annotation(
        names.ANNOTATION_DEVICE_ALLOCATED, "devices, device nodes and library mounts of the containers", _SCHEDULER
    ),
    _annotation(names.ANNOTATION_RESERVATION_ALLOCATED, "the pod uses resources of a Reservation", _SCHEDULER),
    _annotation(names.ANNOTATION_GPU_MINORS, "GPUs, for the device plugin", _SCHEDULER),
    _annotation(names.ANNOTATION_BIND_TIMESTAMP, "which pod a device plugin allocates for", _SCHEDULER),
    _annotation(names.ANNOTATION_PREDICATE_TIME, "which pod Huawei's device plugin allocates for", _SCHEDULER),
    _annotation(names.ANNOTATION_HUAWEI_NPU_CORE, "NPUs, for Huawei's device plugin", _SCHEDULER),
    _annotation(names.ANNOTATION_HUAWEI_ASCEND_310P, "NPUs, for Huawei's device plugin", _SCHEDULER),
    _annotation(names.ANNOTATION_CAMBRICON_DSMLU_PROFILE, "MLUs, for Cambricon's device plugin", _SCHEDULER),
    _annotation(names.ANNOTATION_METAX_GPU_DEVICES_ALLOCATED, "GPUs, for MetaX' device plugin", _SCHEDULER),
    _label(names.LABEL_HAMI_VGPU_NODE, "the node's HAMi monitor counts the pod as a user of its GPUs", _SCHEDULER),
    # classes and settings
    _label(
        names.LABEL_QOS_CLASS,
        "LSE: its CPUs exclude all other pods; SYSTEM: the CPUs of the system class, and no core-scheduling cookie",
        _MANAGER,
        _COMMON_CLASSES,
    ),
    _label(names.LABEL_CORE_SCHED_POLICY, "none: no core-scheduling cookie", _MANAGER, _COOKIES),
    _label(
        names.LABEL_RESERVATION_IGNORED,
        "true: the pod may be placed on reserved resources without consuming the Reservation",
        _MANAGER,
        _NOT_IGNORING,
    ),
    _label(
        names.LABEL_OPERATING_MODE,
        "Reservation: other pods are placed on the resources that this pod uses",
        _MANAGER,
        _NOT_RESERVING,
    ),
    _label(names.LABEL_SKIP_HOOK_SERVER, "containers start without koordlet's hooks", _MANAGER),
    _annotation(names.ANNOTATION_OOM_SCORE_ADJ, "oom_score_adj of the containers", _MANAGER, _SCORES),
    _annotation(names.ANNOTATION_OOM_SCORE_ADJ_SPEC, "oom_score_adj of the containers", _MANAGER, _CONTAINER_SCORES),
    _annotation(names.ANNOTATION_EVICTION_POLICY, "exempts the pod from evictions under pressure", _MANAGER),
    _annotation(names.ANNOTATION_CPU_QOS, "a higher CPU identity than that of the pod's class", _MANAGER),
    _annotation(names.ANNOTATION_RESCTRL, "a resctrl group, of which a node has only a few", _MANAGER),
    _label(
        names.LABEL_QUOTA_NAME,
        "koordinator-system-quota and koordinator-root-quota: the pod is counted against no quota of a tenant",
        _MANAGER,
        _QUOTAS,
    ),
    _annotation(
        names.ANNOTATION_EXTENDED_RESOURCE_SPEC, "shares, CPU quota and memory limit of batch pods", _MANAGER, _DERIVED
    ),
)
"""Keys that users may not set as they like."""

TENANT: Final[tuple[TenantKey, ...]] = (
    TenantKey(names.LABEL_PRIORITY_CLASS, "label", "pods without it are prod pods already"),
    TenantKey(names.LABEL_PRIORITY, "label", "orders evictions within a priority class"),
    TenantKey(names.LABEL_EVICTION_ENABLED, "label", "allows more evictions of the pod, never fewer"),
    TenantKey(names.ANNOTATION_EVICTION_PRIORITY, "annotation", "orders evictions, exempts no pod"),
    TenantKey(names.ANNOTATION_NETWORK_QOS, "annotation", "only limits the pod's bandwidth"),
    TenantKey(names.ANNOTATION_CPU_BURST, "annotation", "NodeSLO limits the burst of a node's pods together"),
    TenantKey(names.ANNOTATION_MEMORY_QOS, "annotation", "protects at most the memory that the pod requests"),
    TenantKey(names.ANNOTATION_BLKIO_QOS, "annotation", "limits, and a weight within the disk's range of weights"),
    TenantKey(
        names.LABEL_CORE_SCHED_GROUP_ID,
        "label",
        "pods of the same namespace may share a group; `exclusive` excludes other pods",
    ),
    TenantKey(names.LABEL_GPU_ISOLATION_PROVIDER, "label", "has an effect only with device-allocated"),
)
"""Keys that root code acts on and any user may set."""
