"""Builds the workload auditor from the command line (spec 05 §7.4)."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from control.scheduler.audit.auditor import WorkloadAuditor
from control.scheduler.audit.workload import AuditLimits, AuditMetrics
from control.scheduler.framework.profile import Framework
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.process.options import SchedulerOptions
from koordlet.api.core import Pod
from koordlet.app.clock import Clock


def build_auditor(
    options: SchedulerOptions, frameworks: Mapping[str, Framework], clock: Clock, registry: CollectorRegistry
) -> WorkloadAuditor | None:
    """None when it is disabled. Its metrics are registered in any case."""
    pairs = options.audit_labels()
    metrics = AuditMetrics(registry, [label for label, _ in pairs])
    if not options.enable_workload_auditor:
        return None
    limits = AuditLimits(
        options.workload_auditor_victim_reschedule_duration,
        options.workload_auditor_victim_deletion_duration,
        options.workload_auditor_victim_deleting_retries,
        options.workload_auditor_scheduling_event_interval,
    )

    def group_of(pod: Pod) -> tuple[str, bool] | None:
        framework = frameworks.get(pod.spec.scheduler_name)
        plugin = framework.plugins.get(Coscheduling.name) if framework is not None else None
        return plugin.group_of(pod) if isinstance(plugin, Coscheduling) else None

    return WorkloadAuditor(clock, metrics, frameworks, group_of, limits=limits, labels=[name for _, name in pairs])
