"""Counting pods against quotas while they are admitted: check and reserve in one write (spec 04 §17).

The running sum is stored in annotation `child-request` of the ElasticQuota. Pods that arrive while their quota is being
written wait for the next batch, so a burst of pods needs few writes. One task at a time processes a quota, and at most
`WORKERS` tasks run in total. A caller waits at most `WAIT_TIMEOUT_S`. A write is conditional on the resourceVersion
that was read; after a conflict the batch is evaluated again, up to a limit that depends on its size (see
`max_retries`). The sum only grows here: lowering it when pods end is the task of a quota controller in the scheduler. A
dry run is checked and reserves nothing."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from control.manager.context import ManagerContext
from control.manager.quota.usage import Account, masked, max_retries, pod_usage, transformed
from control.quota.lists import total
from koordlet.api.annotations.quota import CHILD_REQUEST
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import ResourceList
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter
from koordlet.kube import Conflict, KubeError

log = get_logger(__name__)

WAIT_TIMEOUT_S = 10.0
WORKERS = 16
CACHED_WRITES = 100
TIMED_OUT = "Internal error occurred: resource quota evaluation timed out"


class EvaluationMetrics(MetricSet):
    """Metrics on the internal registry."""

    pods = counter(
        "koord_manager_quota_evaluations_total",
        "Pods evaluated against a quota at admission, by result: allowed, refused, timed_out.",
        "result",
    )
    writes = counter(
        "koord_manager_quota_writes_total",
        "Writes of a quota's used sum, by result: written, conflict, failed.",
        "result",
    )


@dataclass(eq=False)
class _Waiter:
    usage: ResourceList
    result: asyncio.Future[str | None]
    reserved: bool = field(default=False)  # counted in the sum that is written next

    def decide(self, refusal: str | None) -> None:
        if not self.result.done():
            self.result.set_result(refusal)

    @property
    def open(self) -> bool:
        return not self.result.done()


class OwnWrites:
    """The versions of quotas that this process wrote last, used until the informer's cache contains them."""

    def __init__(self, size: int = CACHED_WRITES) -> None:
        self._size = size
        self._quotas: OrderedDict[str, ElasticQuota] = OrderedDict()

    def put(self, quota: ElasticQuota) -> None:
        self._quotas[quota.metadata.key] = quota
        self._quotas.move_to_end(quota.metadata.key)
        while len(self._quotas) > self._size:
            self._quotas.popitem(last=False)

    def newest(self, cached: ElasticQuota | None, key: str) -> ElasticQuota | None:
        """The newer of the own and the cached version; None when the cache has no such quota."""
        own = self._quotas.get(key)
        if cached is None or own is None or own.metadata.uid != cached.metadata.uid:
            return cached
        return own if _version(own) > _version(cached) else cached


def _version(quota: ElasticQuota) -> int:
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else 0


class QuotaEvaluator:
    """See the module docstring."""

    def __init__(self, context: ManagerContext, rng: random.Random | None = None) -> None:
        options = context.options
        self._client = context.client
        self._clock = context.clock
        self._quotas = context.caches.informer(ElasticQuota)
        self._max_retries = max(options.quota_update_max_retries, 3)
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
        """None when the pod fits (and is now counted, unless it is a dry run), else the reason for the refusal."""
        usage = pod_usage(transformed(pod) if self._transform else pod, self._clock.now())
        key = quota.metadata.key
        if dry_run:
            return self._judge(quota, usage)
        waiter = _Waiter(usage, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key), name=f"quota:{key}")
        try:
            async with self._clock.timeout(WAIT_TIMEOUT_S):
                refusal = await waiter.result
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
        """Process batches of one quota until no pod waits."""
        try:
            while waiters := self._waiting.pop(key, []):
                async with self._workers:
                    try:
                        await self._batch(key, [waiter for waiter in waiters if waiter.open])
                    finally:
                        for waiter in waiters:  # after an exception callers must not wait for the timeout
                            waiter.decide("Internal error occurred: resource quota evaluation failed")
        finally:
            del self._tasks[key]

    async def _batch(self, key: str, waiters: list[_Waiter]) -> None:
        remaining = self._max_retries
        delay_sum_s = 0.0
        delta: ResourceList = {}
        resources: frozenset[str] = frozenset()
        while True:
            quota = self._own.newest(self._quotas.get(key), key)
            try:
                if quota is None:
                    raise WireError("the quota no longer exists", where=f"ElasticQuota {key}")
                account = Account.of(quota)
            except WireError as error:
                _decide(waiters, str(error))
                return
            pending = masked(delta, account.resources)
            if delta and resources == account.resources and account.refusal(pending) is None:
                used = total([account.used, pending])  # another client wrote, and the whole batch still fits
            else:
                used, delta = _evaluate(account, waiters)
                changed = sum(waiter.reserved and waiter.open for waiter in waiters)
                if not changed:
                    return
                remaining = min(remaining, max_retries(changed, self._max_retries))
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
                allowed = remaining > 0 and delay_sum_s + self._jitter <= self._jitter_total
                delay_s = self._jitter if allowed else 0.0
                delay_sum_s += delay_s
                if delay_s > 0:
                    await self._clock.sleep(self._rng.uniform(delay_s / 2, delay_s))
                if self._fresh_get:
                    await self._read(quota)

    async def _write(self, quota: ElasticQuota, used: ResourceList) -> KubeError | None:
        """Store the sum, conditional on the resourceVersion read. Returns the error, None on success."""
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
        """Read the quota from the API server; if that fails, the cached object is used."""
        try:
            self._own.put(await self._client.get(ElasticQuota, quota.metadata.name, quota.metadata.namespace))
        except KubeError as error:
            log.warning("Cannot read a quota after a conflict", quota=quota.metadata.key, err=error)


def _decide(waiters: list[_Waiter], refusal: str | None) -> None:
    for waiter in waiters:
        waiter.decide(refusal)


def _evaluate(account: Account, waiters: list[_Waiter]) -> tuple[ResourceList, ResourceList]:
    """Reserve for each open waiter in turn; decide those that are refused or use nothing. Returns (sum, added)."""
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
