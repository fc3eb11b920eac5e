"""Job: runs pods until enough have succeeded or too many have failed.

The counts are those of the pods themselves, which stay until the Job is deleted. Failed pods are replaced after 10 s,
doubled up to 6 min, at most backoffLimit times. In Indexed jobs each completion has an index.
"""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import conditions, ownership
from control.standalone.controllers.base import Key, ignore_missing
from control.standalone.controllers.workload import BURST, WorkloadController
from control.standalone.deletion import DeletionOptions
from control.standalone.objectmeta import parse_timestamp, timestamp
from control.standalone.policyinterfaces import SYSTEM

Json = dict[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 10.0, 360.0


class JobController(WorkloadController):
    name = "job"
    kind = "batch/jobs"
    kind_name = "Job"

    async def reconcile(self, key: Key) -> float | None:
        job = self.registry.find(self.kind, *key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        rows = (job.get("status") or {}).get("conditions") or ()
        ends = (each for each in rows if each["type"] in ("Complete", "Failed") and each["status"] == "True")
        if (end := next(ends, None)) is not None:
            return await self._expire(key, job, end)
        pods = await self.owned(job)
        again = self._deadline(job)
        failure = self._failure(job, pods, again)
        running = [pod for pod in pods if ownership.active(pod)]
        suspended = bool(job["spec"].get("suspend"))
        if failure or suspended or _complete(job, pods):
            for pod in running:
                await self.delete_child(pod)
        else:
            wait = self._backoff(pods)
            again = min((each for each in (again, wait) if each), default=None)
            await self._run(job, pods, running, may_start=not wait)
        await self._report(key, job, await self.owned(job), failure, suspended)
        return again

    def _deadline(self, job: Json) -> float | None:
        """Seconds until activeDeadlineSeconds has passed; 0.0 or less when it has."""
        seconds, start = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
        if seconds is None or start is None or job["spec"].get("suspend"):
            return None
        return float(parse_timestamp(start) + seconds - self.now)

    def _failure(self, job: Json, pods: list[Json], left: float | None) -> tuple[str, str] | None:
        if left is not None and left <= 0:
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        restarts = sum(
            each.get("restartCount", 0)
            for pod in pods
            if ownership.active(pod)
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        )
        if _failed(pods) + restarts > job["spec"].get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _backoff(self, pods: list[Json]) -> float | None:
        """Seconds until the next pod may start; None: now."""
        ends = [_finished_at(pod) for pod in pods if ownership.phase(pod) == "Failed"]
        known = [each for each in ends if each is not None]
        if not known:
            return None
        delay = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2 ** min(len(ends) - 1, 10))
        left = max(known) + delay - self.now
        return left if left > 0 else None

    async def _run(self, job: Json, pods: list[Json], running: list[Json], may_start: bool) -> None:
        spec = job["spec"]
        parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
        succeeded = _succeeded(job, pods)
        if completions is not None:
            desired = min(parallelism, completions - succeeded)
        else:
            desired = 0 if succeeded else parallelism
        surplus = len(running) - desired
        for pod in sorted(running, key=ownership.deletion_order)[: max(0, surplus)]:
            await self.delete_child(pod)
        if not may_start:
            return
        indexes = _open_indexes(job, pods) if spec.get("completionMode") == "Indexed" else None
        for _ in range(min(BURST, desired - len(running))):
            pod = ownership.pod_from(job, spec.get("template") or {})
            if indexes is not None:
                if not indexes:
                    return
                _number(pod, indexes.pop(0))
            await self.create_pod(pod)

    async def _report(
        self, key: Key, job: Json, pods: list[Json], failure: tuple[str, str] | None, suspended: bool
    ) -> None:
        now = timestamp(self.now)
        running = [pod for pod in pods if ownership.active(pod)]
        complete = _complete(job, pods) and failure is None

        def status(old: Json) -> Json:
            new = {
                **old,
                "active": len(running),
                "ready": sum(ownership.ready(pod) for pod in running),
                "succeeded": _succeeded(job, pods),
                "failed": _failed(pods),
            }
            if suspended:
                new.pop("startTime", None)
            else:
                new.setdefault("startTime", now)
            rows = old.get("conditions")
            if suspended or conditions.find(rows, "Suspended") is not None:
                row = ("True", "JobSuspended", "Job suspended") if suspended else ("False", "JobResumed", "Job resumed")
                rows = conditions.put(rows, "Suspended", *row, now)
            if failure is not None:
                rows = conditions.put(rows, "Failed", "True", *failure, now, lastProbeTime=now)
            elif complete:
                new["completionTime"] = now
                message = "Reached expected number of succeeded pods"
                rows = conditions.put(rows, "SuccessCriteriaMet", "True", "CompletionsReached", message, now)
                rows = conditions.put(rows, "Complete", "True", "CompletionsReached", message, now, lastProbeTime=now)
            if rows:
                new["conditions"] = rows
            if job["spec"].get("completionMode") == "Indexed" and (done := _succeeded_indexes(job, pods)):
                new["completedIndexes"] = _ranges(done)
            return {name: value for name, value in new.items() if value or name == "ready"}

        await self.set_status(key, status)

    async def _expire(self, key: Key, job: Json, end: Json) -> float | None:
        """Delete a finished Job after its ttlSecondsAfterFinished."""
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return None
        left: float = parse_timestamp(end["lastTransitionTime"]) + ttl - self.now
        if left > 0:
            return left
        options = DeletionOptions(propagation_policy="Background", uid=job["metadata"]["uid"])
        await ignore_missing(self.registry.delete(self.kind, *key, SYSTEM, options))
        return None


def _index_of(pod: Json) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else None


def _succeeded_indexes(job: Json, pods: list[Json]) -> list[int]:
    total = job["spec"].get("completions") or 0
    indexes = {_index_of(pod) for pod in pods if ownership.phase(pod) == "Succeeded"}
    return sorted(each for each in indexes if each is not None and each < total)


def _succeeded(job: Json, pods: list[Json]) -> int:
    if job["spec"].get("completionMode") == "Indexed":
        return len(_succeeded_indexes(job, pods))
    return sum(ownership.phase(pod) == "Succeeded" for pod in pods)


def _failed(pods: list[Json]) -> int:
    return sum(ownership.phase(pod) == "Failed" for pod in pods)


def _complete(job: Json, pods: list[Json]) -> bool:
    completions = job["spec"].get("completions")
    succeeded = _succeeded(job, pods)
    if completions is not None:
        return bool(succeeded >= completions)
    return succeeded > 0 and not any(ownership.active(pod) for pod in pods)


def _open_indexes(job: Json, pods: list[Json]) -> list[int]:
    taken = {_index_of(pod) for pod in pods if ownership.active(pod) or ownership.phase(pod) == "Succeeded"}
    return [each for each in range(job["spec"].get("completions") or 0) if each not in taken]


def _number(pod: Json, index: int) -> None:
    pod["metadata"].setdefault("annotations", {})[INDEX] = str(index)
    pod["metadata"].setdefault("labels", {})[INDEX] = str(index)
    for group in ("initContainers", "containers"):
        for container in pod["spec"].get(group) or ():
            container["env"] = [*(container.get("env") or ()), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]


def _finished_at(pod: Json) -> float | None:
    ends = [
        terminated["finishedAt"]
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        if (terminated := (each.get("state") or {}).get("terminated")) and terminated.get("finishedAt")
    ]
    return max(map(parse_timestamp, ends), default=None)


def _ranges(indexes: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    out: list[list[int]] = []
    for each in indexes:
        if out and out[-1][1] == each - 1:
            out[-1][1] = each
        else:
            out.append([each, each])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
