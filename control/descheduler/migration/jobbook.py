"""The newest known version of every job, and which jobs arbitration has passed (spec 07 §11.3).

The informer is behind the process's own writes, so each written job is stored here too, and an older version from the
informer is ignored. `passed` does not trust the annotation of a job, which any client that may create jobs could set.
After a change of the leader, jobs that run already are adopted, and all others are arbitrated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from control.descheduler.migration.decide.view import RUNNING, is_terminal, is_waiting
from koordlet.api.crs.migration import PodMigrationJob


class JobBook:
    """See the module text. `changed` is called with the UID of every job that changed or was deleted."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        """UIDs of the jobs that may run"""
        self.changed: Callable[[str], object] = lambda uid: None
        self._jobs: dict[str, PodMigrationJob] = {}
        self._uids: dict[str, str] = {}
        """name -> UID of the newest job of that name"""
        self._active: list[PodMigrationJob] | None = None
        self.version = 0
        """grows with every change"""

    def lead(self) -> None:
        """This process becomes the leader: adopt the jobs that an earlier leader started."""
        self.passed = {uid for uid, job in self._jobs.items() if job.status.phase == RUNNING}

    def get(self, uid: str) -> PodMigrationJob | None:
        """The newest version of the job."""
        return self._jobs.get(uid)

    def named(self, name: str) -> PodMigrationJob | None:
        """The job with this name."""
        return self._jobs.get(self._uids.get(name, ""))

    def active(self) -> Sequence[PodMigrationJob]:
        """The jobs that have not ended."""
        if self._active is None:
            self._active = [job for job in self._jobs.values() if not is_terminal(job)]
        return self._active

    def all(self) -> list[PodMigrationJob]:
        """Every job, also those that have ended."""
        return list(self._jobs.values())

    def waiting(self) -> list[PodMigrationJob]:
        """The jobs that arbitration decides on: not started, not passed, not paused, not being deleted."""
        return [
            job
            for job in self.active()
            if is_waiting(job)
            and job.metadata.uid not in self.passed
            and not job.spec.paused
            and job.metadata.deletion_timestamp is None
        ]

    def may_run(self, job: PodMigrationJob) -> bool:
        """Whether the reconciler handles the job."""
        return job.metadata.uid in self.passed or job.status.phase == RUNNING

    def put(self, job: PodMigrationJob) -> None:
        """A version from the informer or from the answer to a write; older versions are ignored."""
        uid = job.metadata.uid
        known = self._jobs.get(uid)
        if known is not None and _version(job) < _version(known):
            return
        self._jobs[uid] = job
        self._uids[job.metadata.name] = uid
        self._active = None
        self.version += 1
        if is_terminal(job):
            self.passed.discard(uid)
        self.changed(uid)

    def remove(self, job: PodMigrationJob) -> None:
        """The job was deleted."""
        uid = job.metadata.uid
        self._jobs.pop(uid, None)
        if self._uids.get(job.metadata.name) == uid:
            del self._uids[job.metadata.name]
        self._active = None
        self.version += 1
        self.passed.discard(uid)
        self.changed(uid)


def _version(job: PodMigrationJob) -> int:
    """Resource versions of one kind are comparable as integers; anything else counts as old."""
    text = job.metadata.resource_version
    return int(text) if text.isdecimal() else 0
