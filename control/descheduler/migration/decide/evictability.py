"""Which pods may be evicted at all (spec 07 §4.1, §4.2). Pure.

`Evictability.problems` collects every failed check, so that a dry run can explain a pod. The annotation
`descheduler.alpha.kubernetes.io/evict` overrides all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.state.pods import (
    SYSTEM_CRITICAL_PRIORITY,
    cost_of_eviction,
    is_daemon,
    is_mirror,
    is_static,
)
from koordlet.api.annotations.scheduling import NEVER_EVICT_COST
from koordlet.api.core import Pod
from koordlet.api.meta import LabelSelector
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT


def forced(pod: Pod) -> bool:
    """Whether the pod has the annotation that overrides all checks; its value does not matter."""
    return ANNOTATION_DESCHEDULER_EVICT in pod.metadata.annotations


def never_evicted(pod: Pod) -> bool:
    """Whether the eviction cost forbids to move the pod."""
    return cost_of_eviction(pod) == NEVER_EVICT_COST


@dataclass(frozen=True, slots=True)
class Evictability:
    """The settings of spec 07 §4.1 after `skipEvictionGates`."""

    bare_pods: bool = False
    """whether pods without owner may be evicted"""
    failed_bare_pods: bool = False
    system_critical: bool = False
    local_storage: bool = False
    with_claims: bool = True
    priority_threshold: int | None = None
    labels: LabelSelector | None = None

    @classmethod
    def of(cls, args: MigrationControllerArgs, priority_threshold: int | None = None) -> Evictability:
        """`priority_threshold`: the value of the configured PriorityClass; without one the configured value counts."""
        threshold = args.priority_threshold
        if priority_threshold is None and threshold is not None:
            priority_threshold = threshold.value
        return cls(
            bare_pods=args.evict_all_bare_pods or args.skips("BarePods"),
            failed_bare_pods=args.evict_failed_bare_pods or args.skips("BarePods"),
            system_critical=args.evict_system_critical_pods or args.skips("SystemCritical"),
            local_storage=args.evict_local_storage_pods or args.skips("LocalStorage"),
            with_claims=not args.ignore_pvc_pods or args.skips("PVC"),
            priority_threshold=None if args.skips("PriorityThreshold") else priority_threshold,
            labels=None if args.skips("LabelSelector") else args.label_selector,
        )

    def problems(self, pod: Pod) -> list[str]:
        """The reasons why the pod must stay, without regard to the overriding annotation; empty if there are none."""
        return [*_kind_problems(pod), *self._setting_problems(pod)]

    def _setting_problems(self, pod: Pod) -> list[str]:
        problems = []
        if not self.bare_pods and not pod.metadata.owner_references:
            if not self.failed_bare_pods:
                problems.append("pod does not have any ownerRefs")
            elif pod.status.phase != "Failed":
                problems.append("pod does not have any ownerRefs and is not in failed phase")
        if not self.system_critical:
            priority = pod.spec.priority
            if priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY:
                problems.append("pod has system critical priority")
            if self.priority_threshold is not None and priority is not None and priority >= self.priority_threshold:
                problems.append("pod has higher priority than specified priority class threshold")
        volumes = pod.spec.volumes
        if not self.local_storage and any(volume.host_path or volume.empty_dir for volume in volumes):
            problems.append("pod has local storage and descheduler is not configured with evictLocalStoragePods")
        if not self.with_claims and any(volume.persistent_volume_claim for volume in volumes):
            problems.append("pod has a PVC and descheduler is configured to ignore PVC pods")
        if self.labels is not None and not self.labels.is_empty() and not self.labels.matches(pod.metadata.labels):
            problems.append("pod labels do not match the labelSelector filter in the policy parameter")
        return problems


def _kind_problems(pod: Pod) -> list[str]:
    problems = []
    if is_daemon(pod):
        problems.append("pod is a DaemonSet pod")
    if is_mirror(pod):
        problems.append("pod is a mirror pod")
    if is_static(pod):
        problems.append("pod is a static pod")
    if pod.metadata.deletion_timestamp is not None:
        problems.append("pod is terminating")
    return problems
