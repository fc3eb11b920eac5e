"""What the models learn from in one step: the p90 of the last interval (spec 02 §8.2). Reads the metric cache once a
series kind for all pods together; no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from koordlet.app.histogram import Floats
from koordlet.metriccache import Aggregation, MetricCache
from koordlet.prediction.models import NODE, SYSTEM, TRAINED_CLASSES, class_key
from koordlet.statesinformer.nodemetric.usage import memory_kind
from koordlet.statesinformer.pods.model import PodMeta

P90 = Aggregation.P90
LEARNED = tuple(
    f"{level}_{name}"
    for level in ("node", "pod")
    for name in ("cpu_usage", "memory_usage", "memory_usage_with_page_cache", "memory_with_hot_page_usage")
)
"""Series that must reach back one training interval."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cores and bytes."""

    cores: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cores + other.cores, self.memory + other.memory)


@dataclass(frozen=True, slots=True)
class Lesson:
    """One sample a model: cores and bytes, float64[keys]."""

    keys: list[str]
    cores: Floats
    memory: Floats

    @classmethod
    def of(cls, samples: Mapping[str, Usage]) -> Self:
        """From a mapping by key."""
        usages = list(samples.values())
        return cls(list(samples), np.array([u.cores for u in usages]), np.array([u.memory for u in usages]))


def lesson(
    cache: MetricCache, pods: Mapping[str, PodMeta], memory_policy: str, start: float, end: float
) -> Lesson | None:
    """Samples of pods, node, priority classes and system over start..end; None if nothing was measured at all.

    Memory is what NodeMetric's policy counts. A pod that lacks CPU or memory samples is passed over, a class without
    pods learns 0; without figures of the node neither it nor the system learns anything.
    """
    samples = _pods(cache, pods, memory_policy, start, end)
    node = _node(cache, memory_policy, start, end)
    if not samples and node is None:
        return None
    everything = sum(samples.values(), Usage())
    classes = {
        class_key(name): sum((samples[uid] for uid in samples if pods[uid].priority_class == name), Usage())
        for name in TRAINED_CLASSES
    }
    samples.update(classes)
    if node is not None:
        samples[NODE] = node
        samples[SYSTEM] = Usage(max(node.cores - everything.cores, 0.0), max(node.memory - everything.memory, 0.0))
    return Lesson.of(samples)


def _pods(cache: MetricCache, pods: Iterable[str], memory_policy: str, start: float, end: float) -> dict[str, Usage]:
    keys = [(uid,) for uid in pods]
    kinds = ("pod_cpu_usage", memory_kind(cache, "pod", memory_policy, start))
    cpu, memory = (cache.window(kind, start, end, keys).aggregate([P90])[P90] for kind in kinds)
    return {key[0]: Usage(cpu[key], memory[key]) for key in keys if key in cpu and key in memory}


def _node(cache: MetricCache, memory_policy: str, start: float, end: float) -> Usage | None:
    kinds = ("node_cpu_usage", memory_kind(cache, "node", memory_policy, start))
    cpu, memory = (cache.query(kind, start, end) for kind in kinds)
    if not len(cpu.values) or not len(memory.values):
        return None
    return Usage(cpu.aggregate(P90), memory.aggregate(P90))
