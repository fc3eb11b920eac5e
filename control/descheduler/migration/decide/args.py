"""Arguments of the plugin MigrationController, with their defaults and checks (spec 07 §2.3).

JSON names are the camelCase of the attribute. `check` reports all errors, in the form of Kubernetes' own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from control.component.labeltext import parse_label_selector
from control.descheduler.config.selection import NamespaceRule, namespace_errors
from control.descheduler.framework.plugin import PluginArgs
from koordlet.api.crs.migration import MODE_EVICT_DIRECTLY, MODE_RESERVATION_FIRST
from koordlet.api.encoding.wire import Duration
from koordlet.api.meta import DeleteOptions, LabelSelector, SelectorError

EVICTION: Final = "Eviction"
DELETE: Final = "Delete"
SOFT_EVICTION: Final = "SoftEviction"
EVICTION_POLICIES: Final = (EVICTION, DELETE, SOFT_EVICTION)
MODES: Final = (MODE_RESERVATION_FIRST, MODE_EVICT_DIRECTLY)
WORKLOAD: Final = "workload"
NAMESPACE: Final = "namespace"
LIMITER_KINDS: Final = (WORKLOAD, NAMESPACE)

GATES: Final = (
    "MaxUnavailablePerWorkload",
    "MaxMigratingPerWorkload",
    "MaxMigratingPerNode",
    "MaxMigratingPerNamespace",
    "MaxMigratingGlobally",
    "ExpectedReplicas",
    "PVC",
    "BarePods",
    "LocalStorage",
    "SystemCritical",
    "PriorityThreshold",
    "LabelSelector",
    "Namespaces",
    "NodeFit",
)
"""Values of `skipEvictionGates`: each disables one check (spec 07 §11.4)."""

_PERCENT = re.compile(r"[0-9]{1,9}%", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


class MigrationArgsPart(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the objects in the arguments."""


class PriorityThreshold(MigrationArgsPart, frozen=True):
    """Pods of this priority or a higher one do not move: the value, or the PriorityClass with the value."""

    value: int | None = None
    name: str = ""


class ObjectLimit(MigrationArgsPart, frozen=True):
    """At most `maxMigrating` evictions of one object in `duration`, and `burst` at once."""

    duration: Duration = Duration("0s")
    max_migrating: Any = None
    """int, or text `N%`; None: the limit of the workload"""
    burst: int = 1


DEFAULT_LIMIT: Final = ObjectLimit(duration=Duration("5m"))


class ArbitrationArgs(MigrationArgsPart, frozen=True):
    """Whether waiting jobs are compared with the limits, and how often."""

    enabled: bool = True
    interval: Duration = Duration("500ms")


class MigrationControllerArgs(PluginArgs):
    """See spec 07 §2.3. A limit of 0 or None is no limit."""

    dry_run: bool = False
    max_concurrent_reconciles: int = 1
    evict_failed_bare_pods: bool = False
    evict_all_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: PriorityThreshold | None = None
    label_selector: LabelSelector | None = None
    namespaces: NamespaceRule | None = None
    node_fit: bool = False
    node_selector: str = ""
    skip_eviction_gates: list[str] = msgspec.field(default_factory=list)
    max_migrating_globally: int | None = None
    max_migrating_per_node: int | None = 2
    max_migrating_per_namespace: int | None = None
    max_migrating_per_workload: Any = None
    """int, or text `N%`; None: derived from the number of replicas (spec 07 §11.4)"""
    max_unavailable_per_workload: Any = None
    """like `max_migrating_per_workload`"""
    skip_check_expected_replicas: bool = False
    object_limiters: dict[str, ObjectLimit] = msgspec.field(default_factory=dict)
    """kind -> limit; without entries `DEFAULT_LIMIT` for workloads"""
    default_job_mode: str = MODE_RESERVATION_FIRST
    default_job_ttl: Duration = msgspec.field(default=Duration("5m"), name="defaultJobTTL")
    scheduler_names: list[str] = msgspec.field(default_factory=lambda: ["koord-scheduler"])
    evict_qps: Any = msgspec.field(default=10, name="evictQPS")
    """a number, or text with a number"""
    evict_burst: int = 1
    eviction_policy: str = EVICTION
    default_delete_options: DeleteOptions | None = None
    arbitration_args: ArbitrationArgs = ArbitrationArgs()

    def __post_init__(self) -> None:
        if not self.object_limiters:  # only a map with entries replaces the default
            self.object_limiters = {WORKLOAD: DEFAULT_LIMIT}
        if not self.scheduler_names:  # with none, no pod could be migrated by ReservationFirst
            self.scheduler_names = ["koord-scheduler"]

    def check(self, path: str) -> list[str]:
        return [f"{path}.{text}" if path else text for text in _errors(self)]

    @property
    def evictions_per_second(self) -> float:
        """`evictQPS` as a number; text that is not a number counts as 0."""
        return _qps(self.evict_qps)

    def skips(self, gate: str) -> bool:
        """Whether `skipEvictionGates` disables this check."""
        return gate in self.skip_eviction_gates


def _errors(args: MigrationControllerArgs) -> Iterator[str]:
    if args.max_concurrent_reconciles < 1:
        yield _invalid("maxConcurrentReconciles", args.max_concurrent_reconciles, "must be greater than or equal to 1")
    for name, limit in (
        ("maxMigratingGlobally", args.max_migrating_globally),
        ("maxMigratingPerNode", args.max_migrating_per_node),
        ("maxMigratingPerNamespace", args.max_migrating_per_namespace),
    ):
        if limit is not None and limit < 0:
            yield _invalid(name, limit, "must be greater than or equal to 0")
    yield from _amount("maxMigratingPerWorkload", args.max_migrating_per_workload)
    yield from _amount("maxUnavailablePerWorkload", args.max_unavailable_per_workload)
    yield from _limiters(args)
    if args.default_job_mode not in MODES:
        yield _unsupported("defaultJobMode", args.default_job_mode, MODES)
    if args.default_job_ttl.nanoseconds < 0:
        yield _invalid("defaultJobTTL", str(args.default_job_ttl), "must be greater than or equal to 0")
    if not args.evictions_per_second > 0:
        yield _invalid("evictQPS", args.evict_qps, "must be a number greater than 0")
    if args.evict_burst <= 0:
        yield _invalid("evictBurst", args.evict_burst, "must be greater than 0")
    if args.eviction_policy not in EVICTION_POLICIES:
        yield _unsupported("evictionPolicy", args.eviction_policy, EVICTION_POLICIES)
    if args.arbitration_args.interval.nanoseconds <= 0:
        yield _invalid("arbitrationArgs.interval", str(args.arbitration_args.interval), "must be greater than 0")
    for index, gate in enumerate(args.skip_eviction_gates):
        if gate not in GATES:
            yield _unsupported(f"skipEvictionGates[{index}]", gate, GATES)
    yield from _selections(args)


def _limiters(args: MigrationControllerArgs) -> Iterator[str]:
    for kind, limit in args.object_limiters.items():
        where = f"objectLimiters[{kind}]"
        if kind not in LIMITER_KINDS:
            yield _unsupported("objectLimiters", kind, LIMITER_KINDS)
        if limit.duration.nanoseconds <= 0:
            yield _invalid(f"{where}.duration", str(limit.duration), "must be greater than 0")
        if limit.burst <= 0:
            yield _invalid(f"{where}.burst", limit.burst, "must be greater than 0")
        yield from _amount(f"{where}.maxMigrating", limit.max_migrating)


def _selections(args: MigrationControllerArgs) -> Iterator[str]:
    yield from namespace_errors(args.namespaces, "namespaces")
    if args.label_selector is not None:
        try:
            args.label_selector.matches({})
        except SelectorError as error:
            yield _invalid("labelSelector", "", str(error))
    try:
        parse_label_selector(args.node_selector)
    except SelectorError as error:
        yield _invalid("nodeSelector", args.node_selector, str(error))
    threshold = args.priority_threshold
    if threshold is not None and threshold.value is not None and threshold.name:
        yield _invalid("priorityThreshold", threshold.name, "only one of value and name may be set")


def _amount(path: str, value: object) -> Iterator[str]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is None or (whole and value >= 0) or (isinstance(value, str) and _PERCENT.fullmatch(value)):  # type: ignore[operator]
        return
    yield _invalid(path, value, "must be an integer of at least 0, or a percentage such as 10%")


def _qps(value: object) -> float:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else 0.0
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return 0.0


def _invalid(path: str, value: object, detail: str) -> str:
    return f"{path}: Invalid value: {msgspec.json.encode(value, enc_hook=str).decode()}: {detail}"


def _unsupported(path: str, value: str, known: tuple[str, ...]) -> str:
    names = ", ".join(f'"{name}"' for name in sorted(known))
    return f'{path}: Unsupported value: "{value}": supported values: {names}'
