"""PodMigrationJobs of users: a job moves only pods that its user may evict (feature gate ValidateMigrationJobRights).

koord-descheduler carries out jobs with its own rights. So the right to create jobs, which are cluster scoped, would be
the right to evict and to delete the pods of all namespaces, and to reserve capacity. Not in Koordinator.
"""

from __future__ import annotations

from typing import Any, ClassVar

from control.manager.webhooks.userrights import Attributes, UserRightsHandler
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.names import EVICT_POLICY_DELETE, LABEL_EVICT_POLICY


def needed_rights(job: PodMigrationJob, old: PodMigrationJob | None) -> list[Attributes]:
    """The rights without which a user may not make this job, or this change of `old`. None for changes of other fields:
    the descheduler records its progress in annotations."""
    if old is not None and _effect(job) == _effect(old):
        return []
    ref, options = job.spec.pod_ref, job.spec.reservation_options
    pod = {"resource": "pods", "namespace": ref.namespace, "name": ref.name}
    rights = [{**pod, "verb": "create", "subresource": "eviction"}]
    if job.metadata.labels.get(LABEL_EVICT_POLICY) == EVICT_POLICY_DELETE:
        rights.append({**pod, "verb": "delete"})
    if options is not None and options.template is not None:
        rights.append({"group": "scheduling.koordinator.sh", "resource": "reservations", "verb": "create"})
    return rights


def _effect(job: PodMigrationJob) -> tuple[Any, ...]:
    options = job.spec.reservation_options
    template = None if options is None else options.template
    return (job.spec.pod_ref, template, job.metadata.labels.get(LABEL_EVICT_POLICY))


class ValidateMigrationJob(UserRightsHandler):
    """`/validate-podmigrationjob`."""

    path, gate = "/validate-podmigrationjob", "ValidateMigrationJobRights"
    label = "podmigrationjob"
    kinds: ClassVar = {"podmigrationjobs": PodMigrationJob}
    resources = frozenset({("scheduling.koordinator.sh", "podmigrationjobs", "")})
    needed = staticmethod(needed_rights)
