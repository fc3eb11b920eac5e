"""The controller `colocationprofile` (gate ColocationProfileController): applies profiles to pending pods.

A profile is reconciled on every change and then every `--colocation-profile-reconcile-interval`. A pod to which it was
applied is skipped until the profile changes or the force-update duration has passed. A non-blocking token bucket limits
the rate of updates: a pod that gets no token is retried in a later round. A failure for one pod is logged and counted
and does not stop the round. The pod is read from the API server before it is patched, because the cache holds trimmed
pods, and the patch is conditional on the resourceVersion that was read.
"""

from __future__ import annotations

import random

import msgspec

from control.manager.caches import POD_BY_NODE
from control.manager.colocationprofile.decide import managed, profile_patch, selects
from control.manager.context import ManagerContext
from control.manager.controller import ManagerController
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.objects import Json
from control.manager.webhooks.profiles import percent, skipped
from koordlet.api.core import Namespace, Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.meta import SelectorError
from koordlet.api.registry import resource_for
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter
from koordlet.kube import Conflict, KubeError, NotFound
from koordlet.kube.ratelimit import TokenBucket

log = get_logger(__name__)

GATE = "ColocationProfileController"
MAX_ATTEMPTS = 3


class ProfileMetrics(MetricSet):
    """Metrics on the internal registry."""

    pods = counter(
        "koord_manager_colocation_profile_pods_total",
        "Pending pods processed for a profile, by result: patched, unchanged, throttled, failed.",
        "result",
    )


class AppliedProfiles:
    """(profile version, pod) pairs that were applied less than `keep_s` ago; expired ones go every `purge_every_s`."""

    def __init__(self, clock: Clock, keep_s: float, purge_every_s: float) -> None:
        self._clock = clock
        self._keep_s = keep_s
        self._purge_every_s = purge_every_s
        self._until: dict[tuple[str, str], float] = {}
        self._purge_at = clock.monotonic() + purge_every_s

    def __contains__(self, key: tuple[str, str]) -> bool:
        return self._until.get(key, float("-inf")) > self._clock.monotonic()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: tuple[str, str]) -> None:
        now = self._clock.monotonic()
        self._until[key] = now + self._keep_s
        if now >= self._purge_at:
            self._until = {applied: until for applied, until in self._until.items() if until > now}
            self._purge_at = now + self._purge_every_s


class ColocationProfileController(ManagerController):
    """See the module docstring."""

    name = "colocationprofile"

    def __init__(self, context: ManagerContext, rng: random.Random | None = None) -> None:
        super().__init__(context)
        options = context.options
        self._enabled = context.gates.enabled(GATE)
        self._rng = rng or random.Random()
        self._counters = ProfileMetrics.of(context.internal)
        self._applied = AppliedProfiles(
            context.clock,
            options.colocation_profile_force_update_pod_duration,
            options.colocation_profile_expire_pod_cache_duration,
        )
        self._bucket = TokenBucket(
            options.colocation_profile_update_pod_qps,
            options.colocation_profile_update_pod_qps_burst,
            clock=context.clock,
        )
        if self._enabled:
            self._profiles = context.caches.informer(ClusterColocationProfile)
            self._pods = context.caches.informer(Pod)
            self._namespaces = context.caches.informer(Namespace)

    def watch(self) -> None:
        if self._enabled:
            self._profiles.add_handler(
                on_add=lambda new: self.queue.add(new.metadata.name),
                on_update=lambda _, new: self.queue.add(new.metadata.name),
            )

    async def reconcile(self, key: str) -> float | None:
        profile = self._profiles.get(key)
        options = self.context.options
        if profile is None or profile.metadata.deletion_timestamp is not None:
            return None
        if not managed(profile, by_default=options.colocation_profile_reconcile_by_default):
            return None
        try:
            share = percent(profile)
            pods = [pod for pod in self._pods.by_index(POD_BY_NODE, "") if self._selects(profile, pod)]
        except (MutationError, SelectorError) as error:
            self.context.events.warning(profile, "InvalidProfile", str(error))
            return options.colocation_profile_reconcile_interval
        for pod in pods:
            if not skipped(share, lambda: self._rng.randrange(100), strict_parity=self.context.options.strict_parity):
                await self._apply(profile, pod)
        return options.colocation_profile_reconcile_interval

    def _selects(self, profile: ClusterColocationProfile, pod: Pod) -> bool:
        namespace = self._namespaces.get(pod.metadata.namespace)
        return selects(profile, pod, namespace.metadata.labels if namespace else None)

    async def _apply(self, profile: ClusterColocationProfile, pod: Pod) -> None:
        key = (f"{profile.metadata.uid}/{profile.metadata.resource_version}", pod.metadata.uid)
        if key in self._applied:
            return
        if not self._bucket.try_take():
            self._counters.pods.labels("throttled").inc()
            return
        try:
            result = await self._update(profile, pod)
        except (ValueError, KubeError) as error:  # MutationError, or a change that no merge patch can express
            self._counters.pods.labels("failed").inc()
            log.error("Cannot apply a profile to a pod", profile=profile.metadata.name, pod=pod.metadata.key, err=error)
            return
        self._counters.pods.labels(result).inc()
        self._applied.add(key)

    async def _update(self, profile: ClusterColocationProfile, pod: Pod) -> str:
        """Read the pod, compute the patch, send it conditional on the version read. Raises KubeError, MutationError."""
        resource = resource_for(Pod)
        meta = pod.metadata
        for attempt in range(MAX_ATTEMPTS):
            try:
                path = resource.path(meta.namespace, meta.name)
                current: Json = msgspec.json.decode(await self.context.client.raw("GET", path))
                current_meta = current["metadata"]
                body = profile_patch(profile, current)
                if not body or current_meta["uid"] != meta.uid or current["spec"].get("nodeName"):
                    return "unchanged"
                body.setdefault("metadata", {})["resourceVersion"] = current_meta["resourceVersion"]
                await self.context.client.patch(Pod, meta.name, meta.namespace, body=body)
            except NotFound:
                return "unchanged"
            except Conflict:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
            else:
                log.info("Profile applied", profile=profile.metadata.name, pod=meta.key)
                return "patched"
        raise AssertionError("unreachable: the last attempt returns or raises")
