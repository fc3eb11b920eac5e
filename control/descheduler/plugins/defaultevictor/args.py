"""DefaultEvictorArgs (spec 07 §4.3)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from control.component.errors import invalid, unsupported
from control.component.labeltext import parse_label_selector
from control.descheduler.config.selectors import selector_errors
from control.descheduler.framework.plugin import PluginArgs
from control.descheduler.migration.decide.args import PriorityThreshold
from koordlet.api.encoding.times import Duration
from koordlet.api.meta import LabelSelector, SelectorError

LOCAL_STORAGE: Final = "PodsWithLocalStorage"
SYSTEM_CRITICAL: Final = "SystemCriticalPods"
FAILED_BARE: Final = "FailedBarePods"
DAEMON_SETS: Final = "DaemonSetPods"
WITH_CLAIMS: Final = "PodsWithPVC"
WITHOUT_BUDGETS: Final = "PodsWithoutPDB"
RESOURCE_CLAIMS: Final = "PodsWithResourceClaims"

DEFAULT_PROTECTIONS: Final = (LOCAL_STORAGE, SYSTEM_CRITICAL, FAILED_BARE, DAEMON_SETS)
EXTRA_PROTECTIONS: Final = (WITH_CLAIMS, WITHOUT_BUDGETS, RESOURCE_CLAIMS)

PREFERRED: Final = "Preferred"
MANDATORY: Final = "Mandatory"


class PodProtections(msgspec.Struct, rename="camel"):
    """Which protections are in force: the defaults without `defaultDisabled`, and `extraEnabled`."""

    default_disabled: list[str] = msgspec.field(default_factory=list)
    extra_enabled: list[str] = msgspec.field(default_factory=list)
    config: Any = None


class DefaultEvictorArgs(PluginArgs):
    """Arguments of DefaultEvictor."""

    node_selector: str = ""
    label_selector: LabelSelector | None = None
    priority_threshold: PriorityThreshold | None = None
    node_fit: bool = False
    min_replicas: int = 0
    min_pod_age: Duration | None = None
    no_eviction_policy: str = PREFERRED
    pod_protections: PodProtections = msgspec.field(default_factory=PodProtections)
    evict_local_storage_pods: bool = False
    evict_daemon_set_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    ignore_pods_without_pdb: bool = msgspec.field(default=False, name="ignorePodsWithoutPDB")
    evict_failed_bare_pods: bool = False

    def check(self, path: str) -> list[str]:
        errors = selector_errors(self.label_selector, f"{path}.labelSelector")
        try:
            parse_label_selector(self.node_selector)
        except SelectorError as error:
            errors.append(invalid(f"{path}.nodeSelector", self.node_selector, str(error)))
        threshold = self.priority_threshold
        if threshold is not None and threshold.value is not None and threshold.name:
            errors.append(invalid(f"{path}.priorityThreshold", threshold.name, "only one of value and name can be set"))
        if self.min_replicas < 0:
            errors.append(invalid(f"{path}.minReplicas", self.min_replicas, "must not be negative"))
        if self.no_eviction_policy not in (PREFERRED, MANDATORY):
            errors.append(unsupported(f"{path}.noEvictionPolicy", self.no_eviction_policy, [PREFERRED, MANDATORY]))
        where = f"{path}.podProtections"
        for name, values, known in (
            ("defaultDisabled", self.pod_protections.default_disabled, DEFAULT_PROTECTIONS),
            ("extraEnabled", self.pod_protections.extra_enabled, EXTRA_PROTECTIONS),
        ):
            errors += [
                unsupported(f"{where}.{name}[{index}]", value, known)
                for index, value in enumerate(values)
                if value not in known
            ]
        if self.pod_protections.config:
            errors.append(invalid(f"{where}.config", self.pod_protections.config, "is not supported by this build"))
        return errors

    def protections(self) -> frozenset[str]:
        """The protections in force. With any list of `podProtections` the older booleans are ignored."""
        lists = self.pod_protections
        if lists.default_disabled or lists.extra_enabled:
            return frozenset({*DEFAULT_PROTECTIONS} - {*lists.default_disabled} | {*lists.extra_enabled})
        switches = (
            (LOCAL_STORAGE, not self.evict_local_storage_pods),
            (SYSTEM_CRITICAL, not self.evict_system_critical_pods),
            (FAILED_BARE, not self.evict_failed_bare_pods),
            (DAEMON_SETS, not self.evict_daemon_set_pods),
            (WITH_CLAIMS, self.ignore_pvc_pods),
            (WITHOUT_BUDGETS, self.ignore_pods_without_pdb),
        )
        return frozenset(name for name, on in switches if on)
