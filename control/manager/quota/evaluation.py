"""Counting pods against quotas while they are admitted: check and reserve in one write (spec 04 §17).

The running sum stands in annotation `child-request` of the ElasticQuota. Pods that arrive while their quota is being
written wait for the next batch, so that a burst of pods costs few writes; a quota is worked on by one task at a time,
and by 16 tasks at most altogether. Each caller waits `WAIT_SECONDS`. A write is conditional on the version that was
read; on a conflict the batch is looked at again, at most as often as its size allows. The sum only grows here: the
scheduler rewrites it from the pods that exist. A dry run is checked and reserves nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter

from control.manager.context import Context
from control.manager.quota.lists import total
from control.manager.quota.usage import Account, budget, masked, pod_usage, transformed
from koordlet.api.annotations.quota import CHILD_REQUEST
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet
from koordlet.kube import Conflict, KubeError

log = get_logger(__name__)

WAIT_SECONDS = 10.0
WORKERS = 16
REMEMBERED = 100
TIMED_OUT = "Internal error occurred: resource quota evaluation timed out"


class EvaluationMetrics(MetricSet):
    """On the internal registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Counter(
            "koord_manager_quota_evaluations_total", "Pods counted at admission: allowed, refused, timed_out.",
            ["result"], registry=registry,
        )  # fmt: skip
        self.writes = Counter(
            "koord_manager_quota_writes_total", "Writes of a quota's sum: written, conflict, failed.", ["result"],
            registry=registry,
        )  # fmt: skip


@dataclass(eq=False)
class _Waiter:
    usage: ResourceList
    answer: asyncio.Future[str | None]
    reserved: bool = field(default=False)  # counted in the sum about to be written

    def decide(self, refusal: str | None) -> None:
        if not self.answer.done():
            self.answer.set_result(refusal)

    @property
    def open(self) -> bool:
        return not self.answer.done()


class OwnWrites:
    """The last versions that we wrote of some quotas; they count until the cache has them."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._quotas: OrderedDict[str, ElasticQuota] = OrderedDict()

    def put(self, quota: ElasticQuota) -> None:
        self._quotas[quota.metadata.key] = quota
        self._quotas.move_to_end(quota.metadata.key)
        while len(self._quotas) > self._size:
            self._quotas.popitem(last=False)

    def newest(self, cached: ElasticQuota | None, key: str) -> ElasticQuota | None:
        """The newer of ours and the cache's; None when the cache knows of no such quota."""
        own = self._quotas.get(key)
        if cached is None or own is None or own.metadata.uid != cached.metadata.uid:
            return cached
        return own if _version(own) > _version(cached) else cached


def _version(quota: ElasticQuota) -> int:
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else 0


class Evaluator:
    """See the module text."""

    def __init__(self, context: Context, rng: random.Random | None = None) -> None:
        options = context.options
        self._client, self._clock = context.client, context.clock
        self._quotas = context.caches.informer(ElasticQuota)
        self._most = max(options.quota_update_max_retries, 3)
        self._jitter = options.quota_update_retry_jitter
        self._jitter_total = options.quota_update_max_total_jitter
        self._fresh_get = options.quota_update_conflict_fresh_get
        self._transform = context.gates.enabled("ElasticQuotaEvaluationTransformPod") and context.gates.enabled(
            "ReplaceResourcesTransformer"
        )
        self._rng = rng or random.Random()
        self._own = OwnWrites()
        self._waiting: dict[str, list[_Waiter]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._workers = asyncio.Semaphore(WORKERS)
        self._metrics = EvaluationMetrics.of(context.internal)

    async def evaluate(self, pod: Pod, quota: ElasticQuota, *, dry_run: bool) -> str | None:
        """None when the pod fits (and is counted now, unless it is a dry run), else why it is refused."""
        usage = pod_usage(transformed(pod) if self._transform else pod, self._clock.now())
        key = quota.metadata.key
        if dry_run:
            return self._judge(quota, usage)
        waiter = _Waiter(usage, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key), name=f"quota:{key}")
        try:
            async with self._clock.timeout(WAIT_SECONDS):
                refusal = await waiter.answer
        except TimeoutError:
            self._metrics.pods.labels("timed_out").inc()
            return TIMED_OUT
        self._metrics.pods.labels("allowed" if refusal is None else "refused").inc()
        return refusal

    def _judge(self, quota: ElasticQuota, usage: ResourceList) -> str | None:
        try:
            account = Account.of(self._own.newest(quota, quota.metadata.key) or quota)
        except WireError as error:
            return str(error)
        return account.refusal(account.counted(usage))

    async def _work(self, key: str) -> None:
        """Batches of one quota, until nobody waits."""
        try:
            while waiters := self._waiting.pop(key, []):
                async with self._workers:
                    try:
                        await self._batch(key, [waiter for waiter in waiters if waiter.open])
                    finally:
                        for waiter in waiters:  # nobody waits for ten seconds because a batch broke
                            waiter.decide("Internal error occurred: resource quota evaluation failed")
        finally:
            del self._tasks[key]

    async def _batch(self, key: str, waiters: list[_Waiter]) -> None:
        remaining, spent = self._most, 0.0
        delta: ResourceList = {}
        resources: frozenset[str] = frozenset()
        while True:
            quota = self._own.newest(self._quotas.get(key), key)
            try:
                if quota is None:
                    raise WireError("there is no such quota any more", where=f"ElasticQuota {key}")
                account = Account.of(quota)
            except WireError as error:
                _decide(waiters, str(error))
                return
            again = masked(delta, account.resources)
            if delta and resources == account.resources and account.refusal(again) is None:
                used = total([account.used, again])  # somebody else wrote, and all of the batch still fits
            else:
                used, delta = _evaluate(account, waiters)
                changed = sum(waiter.reserved and waiter.open for waiter in waiters)
                if not changed:
                    return
                remaining = min(remaining, budget(changed, self._most))
            resources = account.resources
            failure = await self._write(quota, used)
            if failure is None:
                _decide(waiters, None)
                return
            if remaining <= 0:
                _decide(waiters, str(failure))
                return
            remaining -= 1
            if isinstance(failure, Conflict):
                pause = self._jitter if remaining > 0 and spent + self._jitter <= self._jitter_total else 0.0
                spent += pause
                if pause > 0:
                    await self._clock.sleep(self._rng.uniform(pause / 2, pause))
                if self._fresh_get:
                    await self._read(quota)

    async def _write(self, quota: ElasticQuota, used: ResourceList) -> KubeError | None:
        """Store the sum on condition of the version read; what went wrong."""
        meta = quota.metadata
        annotations = {CHILD_REQUEST.key: CHILD_REQUEST.text(used)}
        body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
        try:
            self._own.put(await self._client.patch(ElasticQuota, meta.name, meta.namespace, body=body))
        except KubeError as error:
            self._metrics.writes.labels("conflict" if isinstance(error, Conflict) else "failed").inc()
            return error
        self._metrics.writes.labels("written").inc()
        return None

    async def _read(self, quota: ElasticQuota) -> None:
        """Take the object from the API server itself; the cache will do if that fails."""
        try:
            self._own.put(await self._client.get(ElasticQuota, quota.metadata.name, quota.metadata.namespace))
        except KubeError as error:
            log.warning("Quota not read after a conflict", quota=quota.metadata.key, err=error)


def _decide(waiters: list[_Waiter], refusal: str | None) -> None:
    for waiter in waiters:
        waiter.decide(refusal)


def _evaluate(account: Account, waiters: list[_Waiter]) -> tuple[ResourceList, ResourceList]:
    """Reserve for every open waiter in turn, decide those that are refused or need nothing; (sum, what was added)."""
    added: ResourceList = {}
    for waiter in waiters:
        if not waiter.open:
            continue
        usage = account.counted(waiter.usage)
        waiter.reserved = False
        refusal = account.refusal(usage) if usage else None
        if refusal is not None or not usage:
            waiter.decide(refusal)
            continue
        waiter.reserved = True
        account = account.with_used(total([account.used, usage]))
        added = total([added, usage])
    return account.used, added
