"""The controller `colocationprofile` (gate ColocationProfileController): follows profiles, patches pending pods.

A profile is looked at on every change of it and then every `--colocation-profile-reconcile-interval`. A pod that had
it applied is left alone until the profile changes or the force-update duration has passed. Updates are held back by a
token bucket that never waits: a pod without a token has its turn in a later round. What goes wrong with one pod is
logged and counted, and does not stop the round. The object that is patched is read from the API server first (the
cache holds trimmed pods), and the patch is conditional on that version.
"""

from __future__ import annotations

import random

import msgspec
from prometheus_client import CollectorRegistry, Counter

from control.manager.caches import POD_BY_NODE
from control.manager.colocationprofile.decide import change, managed, wanted
from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.objects import Json
from control.manager.webhooks.profiles import percent, skipped
from koordlet.api.core import Namespace, Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.meta import SelectorError
from koordlet.api.registry import resource_for
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet
from koordlet.kube import Conflict, KubeError, NotFound
from koordlet.kube.ratelimit import TokenBucket

log = get_logger(__name__)

GATE = "ColocationProfileController"
TRIES = 3


class ProfileMetrics(MetricSet):
    """On the internal registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Counter(
            "koord_manager_colocation_profile_pods_total",
            "Pending pods looked at for a profile: patched, unchanged, throttled, failed.",
            ["result"], registry=registry,
        )  # fmt: skip


class Applied:
    """Which pod had which version of which profile applied, for a while."""

    def __init__(self, clock: Clock, keep: float, purge_every: float) -> None:
        self._clock, self._keep, self._purge_every = clock, keep, purge_every
        self._until: dict[tuple[str, str], float] = {}
        self._purge_at = clock.monotonic() + purge_every

    def __contains__(self, key: tuple[str, str]) -> bool:
        return self._until.get(key, float("-inf")) > self._clock.monotonic()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: tuple[str, str]) -> None:
        now = self._clock.monotonic()
        self._until[key] = now + self._keep
        if now >= self._purge_at:
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._purge_at = now + self._purge_every


class ColocationProfileController(Controller):
    """See the module text."""

    name = "colocationprofile"

    def __init__(self, context: Context, rng: random.Random | None = None) -> None:
        super().__init__(context)
        options = context.options
        self._enabled = context.gates.enabled(GATE)
        self._rng = rng or random.Random()
        self._counters = ProfileMetrics.of(context.internal)
        self._applied = Applied(
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
            pods = [pod for pod in self._pods.by_index(POD_BY_NODE, "") if self._wanted(profile, pod)]
        except (MutationError, SelectorError) as error:
            self.context.events.warning(profile, "InvalidProfile", str(error))
            return options.colocation_profile_reconcile_interval
        for pod in pods:
            if not skipped(share, lambda: self._rng.randrange(100), strict_parity=self.context.options.strict_parity):
                await self._one(profile, pod)
        return options.colocation_profile_reconcile_interval

    def _wanted(self, profile: ClusterColocationProfile, pod: Pod) -> bool:
        namespace = self._namespaces.get(pod.metadata.namespace)
        return wanted(profile, pod, namespace.metadata.labels if namespace else None)

    async def _one(self, profile: ClusterColocationProfile, pod: Pod) -> None:
        key = (f"{profile.metadata.uid}/{profile.metadata.resource_version}", pod.metadata.uid)
        if key in self._applied:
            return
        if not self._bucket.try_take():
            self._counters.pods.labels("throttled").inc()
            return
        try:
            result = await self._update(profile, pod)
        except (ValueError, KubeError) as error:  # MutationError, and what no merge patch can say
            self._counters.pods.labels("failed").inc()
            log.error("Profile not applied", profile=profile.metadata.name, pod=pod.metadata.key, err=error)
            return
        self._counters.pods.labels(result).inc()
        self._applied.add(key)

    async def _update(self, profile: ClusterColocationProfile, pod: Pod) -> str:
        """Read, decide, patch on condition of the version read. Raises KubeError, MutationError."""
        resource = resource_for(Pod)
        meta = pod.metadata
        for attempt in range(TRIES):
            try:
                path = resource.path(meta.namespace, meta.name)
                current: Json = msgspec.json.decode(await self.context.client.raw("GET", path))
                found = current["metadata"]
                body = change(profile, current)
                if not body or found["uid"] != meta.uid or current["spec"].get("nodeName"):
                    return "unchanged"
                body.setdefault("metadata", {})["resourceVersion"] = found["resourceVersion"]
                await self.context.client.patch(Pod, meta.name, meta.namespace, body=body)
            except NotFound:
                return "unchanged"
            except Conflict:
                if attempt == TRIES - 1:
                    raise
            else:
                log.info("Profile applied", profile=profile.metadata.name, pod=meta.key)
                return "patched"
        raise AssertionError("unreachable: the last attempt returns or raises")
