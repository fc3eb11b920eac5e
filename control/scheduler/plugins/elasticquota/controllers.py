"""What the leader does about quotas every second: create the built-in ones, write statuses, evict over-use."""

from __future__ import annotations

import asyncio
from typing import Final

from control.quota.amounts import from_list
from control.scheduler.config.args import ElasticQuotaArgs
from control.scheduler.plugins.defaultpreemption.victims import started
from control.scheduler.plugins.elasticquota.book import QuotaBook
from control.scheduler.plugins.elasticquota.hooks import QuotaHooks
from control.scheduler.plugins.elasticquota.metrics import QuotaMetrics
from control.scheduler.plugins.elasticquota.revoke import OveruseClock, Revocable, to_revoke
from control.scheduler.plugins.elasticquota.status import ChildRequests, QuotaOutput, patch
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.annotations.scheduling import quota_preemptible
from koordlet.api.crs.quota import ElasticQuota, ElasticQuotaSpec
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectMeta
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, Conflict, Informer, KubeError, NotFound

log = get_logger(__name__)

MAX_WRITES: Final = 4
"""Requests at a time: bindings use the same client."""


async def create_built_in(client: Client, informer: Informer[ElasticQuota], args: ElasticQuotaArgs) -> None:
    """Create default, system and root quota if they are missing. Failures are logged; the next leader tries again."""
    for quota in built_in(args):
        if informer.get(quota.metadata.key) is not None:
            continue
        try:
            await client.create(quota)
        except Conflict:
            continue
        except KubeError as error:
            log.warning("Cannot create a built-in ElasticQuota", quota=quota.metadata.key, err=error)


def built_in(args: ElasticQuotaArgs) -> list[ElasticQuota]:
    space = args.quota_group_namespace
    limits = {
        names.DEFAULT_QUOTA: args.default_quota_group_max,
        names.SYSTEM_QUOTA: args.system_quota_group_max,
    }
    quotas = [
        ElasticQuota(metadata=ObjectMeta(name=name, namespace=space), spec=ElasticQuotaSpec(max=dict(limit)))
        for name, limit in limits.items()
    ]
    labels = {
        names.LABEL_QUOTA_IS_PARENT: names.TRUE,
        names.LABEL_QUOTA_ALLOW_LENT_RESOURCE: "false",
        names.LABEL_QUOTA_PARENT: "",
    }
    root = ElasticQuota(metadata=ObjectMeta(name=names.ROOT_QUOTA, namespace=space, labels=labels))
    return [*quotas, root]


class QuotaStatusWriter:
    """Writes the statuses that differ from the figures."""

    def __init__(
        self,
        client: Client,
        informer: Informer[ElasticQuota],
        book: QuotaBook,
        metrics: QuotaMetrics,
        hooks: QuotaHooks | None = None,
    ) -> None:
        self._hooks = hooks
        self._client = client
        self._informer = informer
        self._book = book
        self._metrics = metrics
        self._child_requests = ChildRequests()
        self._settled: dict[str, tuple[str, QuotaOutput]] = {}
        """Quota name -> (resourceVersion, figures) for which nothing is to be written: most quotas in most passes."""

    async def sync(self) -> None:
        """One pass over all quotas."""
        due = self._due()
        slots = asyncio.Semaphore(MAX_WRITES)

        async def write(quota: ElasticQuota, output: QuotaOutput, body: dict[str, object]) -> None:
            async with slots:
                await self._write(quota, output, body)

        await asyncio.gather(*(write(*arguments) for arguments in due))

    def _due(self) -> list[tuple[ElasticQuota, QuotaOutput, dict[str, object]]]:
        """The objects to write, with what they should state."""
        forest, now = self._book.forest, self._client.clock.monotonic()
        due = []
        seen = set()
        for quota in self._informer.list():
            name = quota.metadata.name
            figures = forest.get(name)
            if figures is None or self._book.object_key(name) != quota.metadata.key:
                continue
            seen.add(name)
            state = quota.metadata.resource_version, QuotaOutput.of(forest.tree(figures), figures)
            if self._settled.get(name) == state and not self._hooks:
                continue
            output = self._output(state[1], quota, now)
            body = patch(quota, output, self._hooks.annotations(quota) if self._hooks else {})
            if body:
                due.append((quota, output, body))
            elif self._child_requests.settled(name):
                self._settled[name] = state
        self._child_requests.keep(seen)
        self._settled = {name: state for name, state in self._settled.items() if name in seen}
        return due

    def _output(self, output: QuotaOutput, quota: ElasticQuota, now: float) -> QuotaOutput:
        """With the `child-request` to state now."""
        try:
            present = from_list(annotation.CHILD_REQUEST.get(quota.metadata.annotations) or {})
        except WireError:
            return output  # overwritten
        return output.with_child_request(
            self._child_requests.desired(quota.metadata.name, output.child_request, present, now)
        )

    async def _write(self, quota: ElasticQuota, output: QuotaOutput, body: dict[str, object]) -> None:
        meta = quota.metadata
        with self._metrics.status_seconds.time():
            try:
                await self._client.patch(ElasticQuota, meta.name, meta.namespace, body=body)
            except (Conflict, NotFound):
                return  # the next pass sees the new version
            except KubeError as error:
                log.warning("Cannot write the status of an ElasticQuota", quota=meta.key, err=error)
                return
        self._child_requests.written(meta.name, output.child_request)


class OveruseRevoker:
    """Evicts pods of quotas that use more than their runtime for too long."""

    def __init__(self, client: Client, book: QuotaBook, args: ElasticQuotaArgs, clock: Clock) -> None:
        self._client = client
        self._book = book
        self._clock = clock
        self._overuse = OveruseClock(args.delay_evict_time.seconds)

    async def revoke(self) -> None:
        """One pass over all quotas."""
        for name in self.due():
            for key, uid in self.victims(name):
                space, _, pod = key.partition("/")
                try:
                    await self._client.evict(pod, space, uid=uid)
                except NotFound:
                    continue
                except KubeError as error:  # also 429: a disruption budget does not allow it now
                    log.warning("Cannot evict a pod of an overused quota", quota=name, pod=key, err=error)
                else:
                    log.info("Evicted a pod of an overused quota", quota=name, pod=key)

    def due(self) -> list[str]:
        """The quotas that use too much for too long. A quota whose parent is missing has no runtime: its pods stay."""
        forest = self._book.forest
        over = {}
        for quota in forest.quotas():
            if quota.attached and quota.name != names.SYSTEM_QUOTA:
                runtime = forest.tree(quota).runtimes(quota)
                over[quota.name] = any(quota.used.get(name, 0) > amount for name, amount in runtime.items())
        return self._overuse.due(over, self._clock.monotonic())

    def victims(self, name: str) -> list[tuple[str, str]]:
        """(`namespace/name`, uid) of the pods to evict."""
        forest = self._book.forest
        quota = forest.get(name)
        if quota is None:
            return []
        pods = {
            info.uid: info
            for _, info in self._book.assigned(quota)
            if quota_preemptible(info.shape.labels) and not info.assumed
        }
        revocable = [
            Revocable(uid, info.priority, started(info), quota.pods[uid].counted or {}) for uid, info in pods.items()
        ]
        chosen = to_revoke(quota.used, forest.tree(quota).runtimes(quota), revocable)
        return [(pods[uid].key, uid) for uid in chosen if not pods[uid].terminating]
