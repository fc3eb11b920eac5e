"""Counting pods against quotas at admission: figures, batches, conflicts, time-outs (spec 04 §17)."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.manager.quota import evaluation
from control.manager.quota.evaluation import OwnWrites, QuotaEvaluator
from control.manager.quota.usage import Account, max_retries, pod_usage, transformed
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError, convert
from koordlet.kube import Conflict, ServerError
from tests.fakeclock import FakeClock
from tests.present import present

KEY = "quota.scheduling.koordinator.sh/"


def quota(used: str | None = None, version: str = "1", admission: str | None = None, **maximum: Any) -> ElasticQuota:
    notes = {k: v for k, v in ((KEY + "child-request", used), (KEY + "admission", admission)) if v is not None}
    meta = {"name": "q", "namespace": "ns", "uid": "u", "resourceVersion": version, "annotations": notes}
    return convert({"metadata": meta, "spec": {"max": {k: str(v) for k, v in maximum.items()}}}, ElasticQuota)


def pod(cpu: int | None, memory: int | None = None, annotations: dict[str, str] | None = None, **status: Any) -> Pod:
    requests = {k: str(v) for k, v in (("cpu", cpu), ("memory", memory)) if v is not None}
    return convert(
        {
            "metadata": {"annotations": annotations or {}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": status,
        },
        Pod,
    )


def amounts(**resources: Any) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity(str(amount)) for name, amount in resources.items()}


FITS = {
    "fits": (quota('{"cpu":"1"}', cpu=4), amounts(cpu=3), None),
    "too much": (
        quota('{"cpu":"3"}', cpu=4, memory=10), amounts(cpu=2, memory=1),
        "exceeded quota: ns/q, requested: cpu=2, used: cpu=3, limited: cpu=4",
    ),
    "over in two": (
        quota('{"cpu":"3"}', cpu=4, memory=10), amounts(memory=11, cpu=2),
        "exceeded quota: ns/q, requested: cpu=2,memory=11, used: cpu=3,memory=0, limited: cpu=4,memory=10",
    ),
    "admission limits instead of max": (
        quota(admission='{"cpu":"1"}', cpu=4), amounts(cpu=2),
        "exceeded quota: ns/q, requested: cpu=2, used: cpu=0, limited: cpu=1",
    ),
    "not in admission is unlimited": (quota(admission='{"memory":"1"}', cpu=4), amounts(cpu=9), None),
    "already exceeded, requests other resources": (quota('{"cpu":"9"}', cpu=4, memory=10), amounts(memory=1), None),
    "no max": (quota(), amounts(cpu=9), None),
    "nothing managed": (quota(gpus=1), amounts(gpus=2), None),
}  # fmt: skip


@pytest.mark.parametrize(("elastic_quota", "usage", "expected"), FITS.values(), ids=FITS)
def test_one_pod(elastic_quota: ElasticQuota, usage: dict[str, Quantity], expected: str | None) -> None:
    account = Account.of(elastic_quota)
    assert account.refusal(account.counted(usage)) == expected


def test_malformed_annotations_are_named() -> None:
    for bad in (quota("[", cpu=1), quota(admission="{", cpu=1)):
        with pytest.raises(WireError, match="annotation quota"):
            Account.of(bad)


def test_usage_of_a_pod() -> None:
    assert pod_usage(pod(2), 0) == amounts(cpu=2)
    assert pod_usage(pod(2, phase="Succeeded"), 0) == {}
    gone = pod(2)
    gone.metadata = convert(
        {"deletionTimestamp": "1970-01-01T00:00:10Z", "deletionGracePeriodSeconds": 5}, type(gone.metadata)
    )
    assert pod_usage(gone, 14) == amounts(cpu=2)
    assert pod_usage(gone, 16) == {}


def test_resources_can_be_renamed_before_counting() -> None:
    batch_pod = pod(2, 3, {"pod.koordinator.sh/replace-resources": "cpu:kubernetes.io/batch-cpu,memory:"})
    assert pod_usage(transformed(batch_pod), 0) == {"kubernetes.io/batch-cpu": Quantity("2k")}
    assert pod_usage(batch_pod, 0) == amounts(cpu=2, memory=3)


BUDGETS = [
    (0, 10, 3),
    (1, 10, 3),
    (2, 10, 4),
    (3, 10, 4),
    (4, 10, 5),
    (8, 10, 6),
    (16, 10, 7),
    (128, 10, 10),
    (8, 3, 3),
]


@pytest.mark.parametrize(("changed", "most", "expected"), BUDGETS)
def test_max_retries(changed: int, most: int, expected: int) -> None:
    assert max_retries(changed, most) == expected


def test_own_writes_count_until_the_cache_has_them() -> None:
    own = OwnWrites(size=1)
    assert own.newest(None, "ns/q") is None
    own.put(quota(version="5"))
    assert present(own.newest(quota(version="4"), "ns/q")).metadata.resource_version == "5"
    assert present(own.newest(quota(version="10"), "ns/q")).metadata.resource_version == "10"
    again = quota(version="2")
    again.metadata.uid = "other"
    assert own.newest(again, "ns/q") is again, "deleted and made again"
    other = quota(version="7")
    other.metadata.name = "r"
    own.put(other)
    assert present(own.newest(quota(version="4"), "ns/q")).metadata.resource_version == "4", "forgotten"


class Server:
    """One quota on a server that checks versions; `steps` are run, one each, before a write is looked at."""

    def __init__(self, stored: ElasticQuota, *steps: Any) -> None:
        self.stored = stored
        self.cached = stored
        self.steps = list(steps)
        self.writes: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def write(self, used: str) -> None:
        """Another client writes."""
        self.stored = quota(used, str(int(self.stored.metadata.resource_version) + 1), **self._max())

    def _max(self) -> dict[str, str]:
        return {name: str(amount) for name, amount in self.stored.spec.max.items()}

    async def patch(self, kind: type[ElasticQuota], name: str, namespace: str, *, body: dict[str, Any]) -> ElasticQuota:
        await self.gate.wait()
        if self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            self.write(step)
        self.writes.append(body["metadata"]["annotations"][KEY + "child-request"])
        if body["metadata"]["resourceVersion"] != self.stored.metadata.resource_version:
            raise Conflict(409, reason="Conflict", message="the object has been modified")
        self.write(self.writes[-1])
        return self.stored

    async def get(self, kind: type[ElasticQuota], name: str, namespace: str) -> ElasticQuota:
        return self.stored


def evaluator(server: Server, clock: FakeClock | None = None, **options: Any) -> QuotaEvaluator:
    flags = {
        "quota_update_max_retries": 3, "quota_update_retry_jitter": 0.0, "quota_update_max_total_jitter": 1.0,
        "quota_update_conflict_fresh_get": True, **options,
    }  # fmt: skip
    server.clock = clock or FakeClock()  # type: ignore[attr-defined]
    context = SimpleNamespace(
        options=SimpleNamespace(**flags),
        client=server,
        clock=server.clock,  # type: ignore[attr-defined]
        gates=SimpleNamespace(enabled=lambda _: False),
        caches=SimpleNamespace(informer=lambda _: SimpleNamespace(get=lambda key: server.cached)),
        internal=CollectorRegistry(),
    )
    return QuotaEvaluator(context, random.Random(1))  # type: ignore[arg-type]


async def many(subject: QuotaEvaluator, server: Server, *pods: Pod) -> list[str | None]:
    return await asyncio.gather(*(subject.evaluate(each, server.cached, dry_run=False) for each in pods))


async def test_a_batch_is_one_write() -> None:
    server = Server(quota('{"cpu":"10"}', cpu=20))
    assert await many(evaluator(server), server, pod(2), pod(3), pod(9), pod(4)) == [
        None, None, "exceeded quota: ns/q, requested: cpu=9, used: cpu=15, limited: cpu=20", None,
    ]  # fmt: skip
    assert server.writes == ['{"cpu":"19"}']


async def test_pods_without_counted_usage_cause_no_write() -> None:
    server = Server(quota(cpu=20))
    assert await many(evaluator(server), server, pod(0), pod(None, 5)) == [None, None]
    assert server.writes == []


async def test_after_a_conflict_the_whole_batch_still_fits() -> None:
    server = Server(quota('{"cpu":"10"}', cpu=20), '{"cpu":"12"}')
    assert await many(evaluator(server), server, pod(2), pod(3)) == [None, None]
    assert server.writes == ['{"cpu":"15"}', '{"cpu":"17"}']


async def test_after_a_conflict_the_batch_no_longer_fits() -> None:
    server = Server(quota('{"cpu":"10"}', cpu=20), '{"cpu":"18"}')
    assert await many(evaluator(server), server, pod(5)) == [
        "exceeded quota: ns/q, requested: cpu=5, used: cpu=18, limited: cpu=20"
    ]
    assert len(server.writes) == 1


async def test_a_batch_that_no_longer_fits_is_evaluated_per_pod() -> None:
    server = Server(quota('{"cpu":"10"}', cpu=20), '{"cpu":"16"}')
    first, second = await many(evaluator(server), server, pod(3), pod(4))
    assert first is None
    assert second == "exceeded quota: ns/q, requested: cpu=4, used: cpu=19, limited: cpu=20"
    assert server.stored.metadata.annotations[KEY + "child-request"] == '{"cpu":"19"}'


async def test_retries_are_limited() -> None:
    server = Server(quota(cpu=20), *('{"cpu":"1"}' for _ in range(9)))
    (refusal,) = await many(evaluator(server), server, pod(1))
    assert "the object has been modified" in refusal  # type: ignore[operator]
    assert len(server.writes) == 4, "three retries for one pod"


async def test_other_errors_are_retried() -> None:
    server = Server(quota(cpu=20), ServerError(500, reason="", message="broken"))
    assert await many(evaluator(server), server, pod(1)) == [None]


async def test_delays_after_conflicts_are_bounded() -> None:
    clock = FakeClock(auto=True)
    server = Server(quota(cpu=20), *('{"cpu":"1"}' for _ in range(3)))
    began = clock.monotonic()
    subject = evaluator(server, clock, quota_update_retry_jitter=0.6)
    assert await many(subject, server, pod(1)) == [None]
    assert 0.3 <= clock.monotonic() - began <= 0.6, "a second pause would make more than a second in all"


async def test_pods_that_arrive_during_a_write_wait_for_the_next() -> None:
    server = Server(quota(cpu=20))
    subject = evaluator(server)
    server.gate.clear()
    first = asyncio.create_task(subject.evaluate(pod(1), server.cached, dry_run=False))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [asyncio.create_task(subject.evaluate(pod(2), server.cached, dry_run=False)) for _ in range(5)]
    await asyncio.sleep(0)
    server.gate.set()
    assert await asyncio.gather(first, *rest) == [None] * 6
    assert server.writes == ['{"cpu":"1"}', '{"cpu":"11"}']


async def test_a_dry_run_reserves_nothing() -> None:
    server = Server(quota('{"cpu":"19"}', cpu=20))
    subject = evaluator(server)
    assert await subject.evaluate(pod(1), server.cached, dry_run=True) is None
    assert await subject.evaluate(pod(2), server.cached, dry_run=True) == (
        "exceeded quota: ns/q, requested: cpu=2, used: cpu=19, limited: cpu=20"
    )
    assert server.writes == []


async def test_waiting_has_a_timeout() -> None:
    clock = FakeClock()
    server = Server(quota(cpu=20))
    server.gate.clear()
    subject = evaluator(server, clock)
    requested = asyncio.create_task(subject.evaluate(pod(1), server.cached, dry_run=False))
    await asyncio.sleep(0)
    await clock.advance(evaluation.WAIT_TIMEOUT_S + 1)
    assert await requested == evaluation.TIMED_OUT
    server.gate.set()
    await asyncio.gather(*subject._tasks.values())


async def test_a_deleted_or_malformed_quota_refuses() -> None:
    server = Server(quota(cpu=20))
    subject = evaluator(server)
    first = server.cached
    server.cached = None  # type: ignore[assignment]
    assert "no longer exists" in (await subject.evaluate(pod(1), first, dry_run=False) or "")
    server.cached = quota("[", cpu=20)
    assert KEY + "child-request" in (await subject.evaluate(pod(1), first, dry_run=False) or "")


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(0, 20), st.lists(st.integers(0, 20), max_size=3))
def test_admitted_pods_never_exceed_the_quota(requested: list[int], used: int, other_requests: list[int]) -> None:
    """Whatever other clients write meanwhile: the last write of the webhook is within the limit unless theirs exceeded
    it."""

    async def play() -> None:
        server = Server(quota(f'{{"cpu":"{used}"}}', cpu=20), *(f'{{"cpu":"{each}"}}' for each in other_requests))
        answers = await many(evaluator(server), server, *(pod(each) for each in requested))
        admitted = sum(each for each, answer in zip(requested, answers, strict=True) if answer is None)
        if len(server.writes) > len(other_requests):  # the last write was taken
            base = other_requests[len(server.writes) - 2] if len(server.writes) > 1 else used
            stored = Quantity(server.stored.metadata.annotations[KEY + "child-request"][8:-2])
            assert stored.value() == base + admitted <= 20
        for each, answer in zip(requested, answers, strict=True):
            assert each or answer is None

    asyncio.run(play())
