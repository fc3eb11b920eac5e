"""Which nodes the running jobs of each workload leave (see `decide.places`).

A pod is noted when its job passes arbitration, and known until the job ends: also while the pod is gone already. After
a restart pods that are gone have no node here.
"""

from __future__ import annotations

from collections.abc import Collection


class Departures:
    """See the module text."""

    def __init__(self) -> None:
        self._by_job: dict[str, tuple[str, str]] = {}
        """UID of a job -> UID of the controller, node"""
        self._jobs: dict[str, set[str]] = {}
        """UID of a controller -> UIDs of the jobs"""

    def __len__(self) -> int:
        return len(self._by_job)

    def note(self, job: str, workload: str, node: str) -> None:
        """A job moves a pod of the workload; the first note counts. An empty workload is that of a bare pod."""
        if workload and job not in self._by_job:
            self._by_job[job] = workload, node
            self._jobs.setdefault(workload, set()).add(job)

    def drop(self, job: str) -> None:
        """The job has ended."""
        workload, _ = self._by_job.pop(job, ("", ""))
        jobs = self._jobs.get(workload)
        if jobs is not None:
            jobs.discard(job)
            if not jobs:
                del self._jobs[workload]

    def siblings(self, job: str) -> list[str]:
        """UIDs of the other jobs of the same workload, sorted."""
        workload, _ = self._by_job.get(job, ("", ""))
        return sorted(self._jobs.get(workload, set()) - {job})

    def nodes(self, jobs: Collection[str]) -> list[str]:
        """The nodes that the pods of these jobs leave, sorted."""
        return sorted({node for job in jobs if (node := self._by_job.get(job, ("", ""))[1])})
