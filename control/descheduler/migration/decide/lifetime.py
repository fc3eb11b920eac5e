"""How long a job may exist (spec 07 §11.6-4, §11.10). Pure."""

from __future__ import annotations

from koordlet.api.crs.migration import PodMigrationJob

SCAVENGER_GRACE_S = 300.0
"""Seconds after its time to live at which a job is deleted."""
ENDLESS_JOB_S = 1800.0
"""Age at which a job without time to live is deleted."""


def age(job: PodMigrationJob, now: float) -> float:
    """Seconds since the creation; 0 for a job without creation time."""
    created = job.metadata.creation_timestamp
    return now - created.unix if created is not None else 0.0


def ttl(job: PodMigrationJob) -> float:
    """Seconds that the job may take; 0: no limit."""
    return max(job.spec.ttl.seconds, 0.0) if job.spec.ttl is not None else 0.0


def has_expired(job: PodMigrationJob, now: float) -> bool:
    """Whether the time to live has passed."""
    return 0 < ttl(job) <= age(job, now)


def is_scrap(job: PodMigrationJob, now: float) -> bool:
    """Whether the scavenger deletes the job, whatever its phase."""
    limit = ttl(job) + SCAVENGER_GRACE_S if ttl(job) > 0 else ENDLESS_JOB_S
    return age(job, now) >= limit
