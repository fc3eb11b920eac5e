"""Evicts the pod of a job: Eviction API, deletion, or a request to an external operator (spec 07 §11.8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from control.descheduler.migration.decide.args import DELETE, EVICTION, EVICTION_POLICIES, SOFT_EVICTION
from koordlet.api.annotations.scheduling import SOFT_EVICTION as SOFT_EVICTION_ANNOTATION
from koordlet.api.annotations.scheduling import SoftEviction
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import DeleteOptions, Preconditions
from koordlet.api.names import ANNOTATION_EVICT_REASON, ANNOTATION_EVICT_TRIGGER, LABEL_EVICT_POLICY
from koordlet.kube import ApiError, Client, Conflict, EventRecorder, KubeError, NotFound, TooManyRequests
from koordlet.kube.ratelimit import TokenBucket

SOFT_EVICTION_ATTEMPTS = 5
NOT_SET = "NotSet"


class EvictionFailed(Exception):
    """The eviction was refused or failed; the message is for the job's event. It is repeated with back-off."""


class EvictionDenied(EvictionFailed):
    """The pod is certainly not evicted by this request; after other failures it may be."""


def policy_of(pod: Pod, job: PodMigrationJob, default: str) -> str:
    """The label of the pod, else of the job, else the default; unknown values count as the default."""
    value = pod.metadata.labels.get(LABEL_EVICT_POLICY) or job.metadata.labels.get(LABEL_EVICT_POLICY) or default
    return value if value in EVICTION_POLICIES else default


def trigger_of(job: PodMigrationJob) -> str:
    """The plugin that requested the migration; empty for a job of a user."""
    return job.metadata.annotations.get(ANNOTATION_EVICT_TRIGGER, "")


def reason_of(job: PodMigrationJob) -> str:
    """The plugin's reason, else its name, else `NotSet`."""
    return job.metadata.annotations.get(ANNOTATION_EVICT_REASON) or trigger_of(job) or NOT_SET


def options_for(job: PodMigrationJob, pod: Pod) -> DeleteOptions:
    """The job's options, restricted to the pod that the job names: never to a pod that replaced it."""
    plain = job.spec.delete_options or DeleteOptions()
    options = DeleteOptions(
        kind="DeleteOptions",
        api_version="v1",
        grace_period_seconds=plain.grace_period_seconds,
        orphan_dependents=plain.orphan_dependents,
        propagation_policy=plain.propagation_policy,
        dry_run=list(plain.dry_run),
    )
    options.preconditions = Preconditions(uid=pod.metadata.uid)
    if plain.preconditions is not None:
        options.preconditions.resource_version = plain.preconditions.resource_version
    return options


class Evictors:
    """Evictions of all jobs of the process, with their common rate limit."""

    def __init__(self, client: Client, events: EventRecorder, *, default: str, qps: float, burst: int) -> None:
        self._client = client
        self._events = events
        self._default = default
        self._bucket = TokenBucket(qps, burst, clock=client.clock)
        self._by_policy: dict[str, Callable[[PodMigrationJob, Pod], Awaitable[None]]] = {
            EVICTION: self._evict,
            DELETE: self._delete,
            SOFT_EVICTION: self._request,
        }

    async def evict(self, job: PodMigrationJob, pod: Pod) -> None:
        """Evict the pod with this UID. Returns when the API server has accepted it.

        Raises EvictionDenied if the pod is certainly not evicted, else EvictionFailed.
        """
        if not self._bucket.try_take():
            raise EvictionDenied("TooManyEvictions: the descheduler's evictQPS is used up")
        policy, meta = policy_of(pod, job, self._default), pod.metadata
        try:
            await self._by_policy[policy](job, pod)
        except TooManyRequests as error:
            raise EvictionDenied(f"cannot evict pod {meta.key} now: {error.message or error}") from error
        except NotFound as error:
            raise EvictionDenied(f"pod {meta.key} not found when evicting it") from error
        except KubeError as error:
            is_refused = isinstance(error, ApiError) and error.status < 500
            kind = EvictionDenied if is_refused else EvictionFailed
            raise kind(f"cannot evict pod {meta.key}: {error}") from error
        message = f'Pod evicted from node "{pod.spec.node_name}" by the reason "{reason_of(job)}"'
        self._events.normal(pod, "Descheduled", message)

    async def _evict(self, job: PodMigrationJob, pod: Pod) -> None:
        await self._client.evict(pod.metadata.name, pod.metadata.namespace, options=options_for(job, pod))

    async def _delete(self, job: PodMigrationJob, pod: Pod) -> None:
        await self._client.delete(Pod, pod.metadata.name, pod.metadata.namespace, options=options_for(job, pod))

    async def _request(self, job: PodMigrationJob, pod: Pod) -> None:
        value = SoftEviction(
            timestamp=Time.from_unix(self._client.clock.now()),
            delete_options=job.spec.delete_options,
            initiator=trigger_of(job),
            reason=reason_of(job),
        )
        annotations = {SOFT_EVICTION_ANNOTATION.key: SOFT_EVICTION_ANNOTATION.text(value)}
        body: dict[str, Any] = {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}
        for attempt in range(SOFT_EVICTION_ATTEMPTS):
            try:
                await self._client.patch(Pod, pod.metadata.name, pod.metadata.namespace, body=body)
                return
            except (Conflict, TooManyRequests):
                if attempt == SOFT_EVICTION_ATTEMPTS - 1:
                    raise
