"""How fast the pods of one workload or namespace may be evicted (spec 07 §11.5). Pure; time is an argument.

A token bucket per object that had an eviction: `maxMigrating` tokens per `duration`, at most `burst` accumulated. An
object without a bucket is not limited. Buckets are forgotten after 1.5 times the duration without use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from control.descheduler.migration.decide.args import NAMESPACE, WORKLOAD, ObjectLimit
from control.descheduler.migration.decide.pods import controller_uid
from control.descheduler.migration.decide.workloads import get_max
from koordlet.api.core import Pod

FORGET_AFTER_DURATIONS = 1.5


@dataclass(slots=True)
class _Bucket:
    rate: float
    """tokens per second"""
    capacity: float
    tokens: float
    at: float
    """monotonic seconds of `tokens`"""
    used_at: float

    def refill(self, now: float) -> None:
        self.tokens = min(self.capacity, self.tokens + max(now - self.at, 0.0) * self.rate)
        self.at = now


class RecordedBucket(msgspec.Struct, frozen=True, array_like=True):
    """A bucket as another process can read it."""

    tokens: float
    rate: float
    """tokens per second"""
    unix: float
    """Unix seconds of `tokens`"""


class ObjectLimiter:
    """Buckets by kind and object. `now` is monotonic time in seconds everywhere."""

    def __init__(self, limits: Mapping[str, ObjectLimit], per_workload: int | str | None = None) -> None:
        """`per_workload`: `maxMigratingPerWorkload`, for a workload limit without `maxMigrating`."""
        self._limits = dict(limits)
        self._per_workload = per_workload
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def exceeded(self, pod: Pod, now: float) -> bool:
        """Whether the pod must wait because of earlier evictions."""
        for kind in self._limits:
            bucket = self._buckets.get((kind, _key(kind, pod)))
            if bucket is not None:
                bucket.refill(now)
                if bucket.tokens < 1:
                    return True
        return False

    def track(self, pod: Pod, replicas: int, now: float) -> None:
        """Count an eviction. `replicas`: of the pod's workload."""
        self._forget(now)
        for kind, limit in self._limits.items():
            key, most = _key(kind, pod), self._most(kind, limit, replicas)
            if not key or most <= 0:
                continue
            rate, capacity = most / limit.duration.seconds, float(limit.burst)
            bucket = self._buckets.get((kind, key))
            if bucket is None:
                bucket = self._buckets[kind, key] = _Bucket(rate, capacity, capacity, now, now)
            bucket.refill(now)
            bucket.rate, bucket.capacity = rate, capacity
            bucket.tokens = min(bucket.tokens, capacity) - 1
            bucket.used_at = now

    def restore_token(self, pod: Pod, now: float) -> None:
        """The eviction that was counted did not happen."""
        for kind in self._limits:
            bucket = self._buckets.get((kind, _key(kind, pod)))
            if bucket is not None:
                bucket.refill(now)
                bucket.tokens = min(bucket.capacity, bucket.tokens + 1)

    def recorded(self, now: float, unix: float, most: int) -> dict[str, RecordedBucket]:
        """The buckets that are not full, at most `most`, the last used ones; `unix`: the time `now` in Unix seconds."""
        for bucket in self._buckets.values():
            bucket.refill(now)
        partial = [(key, bucket) for key, bucket in self._buckets.items() if bucket.tokens < bucket.capacity]
        partial.sort(key=lambda each: each[1].used_at, reverse=True)
        return {
            f"{kind}/{name}": RecordedBucket(round(bucket.tokens, 3), bucket.rate, round(unix, 3))
            for (kind, name), bucket in partial[:most]
        }

    def restore(self, records: Mapping[str, RecordedBucket], now: float, unix: float) -> None:
        """Continue the buckets of an earlier process; where this one has a bucket, too, the lower one counts."""
        for key, record in records.items():
            kind, _, name = key.partition("/")
            limit = self._limits.get(kind)
            if limit is None or not name or record.rate <= 0:
                continue
            capacity = float(limit.burst)
            passed = max(
                unix - record.unix, 0.0
            )  # a time in the future, of a process with another clock, counts as now
            tokens = min(capacity, record.tokens + passed * record.rate)
            known = self._buckets.get((kind, name))
            if known is None:
                self._buckets[kind, name] = _Bucket(record.rate, capacity, tokens, now, now)
            else:
                known.refill(now)
                known.tokens = min(known.tokens, tokens)

    def _most(self, kind: str, limit: ObjectLimit, replicas: int) -> int:
        if kind == WORKLOAD:
            return get_max(replicas, self._per_workload if limit.max_migrating is None else limit.max_migrating)
        return limit.max_migrating if isinstance(limit.max_migrating, int) else 0

    def _forget(self, now: float) -> None:
        for (kind, key), bucket in list(self._buckets.items()):
            if now - bucket.used_at > FORGET_AFTER_DURATIONS * self._limits[kind].duration.seconds:
                del self._buckets[kind, key]


def _key(kind: str, pod: Pod) -> str:
    return pod.metadata.namespace if kind == NAMESPACE else controller_uid(pod)
