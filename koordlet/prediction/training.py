"""The samples of one training step: the p90 of the last interval (spec 02 §8.2). Reads the metric cache once per series
kind for all pods together; no clock of its own."""

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
TRAINED_KINDS = tuple(
    f"{level}_{name}"
    for level in ("node", "pod")
    for name in ("cpu_usage", "memory_usage", "memory_usage_with_page_cache", "memory_with_hot_page_usage")
)
"""Series that must be kept for one training interval."""


@dataclass(frozen=True, slots=True)
class ModelSample:
    """Cores and bytes."""

    cores: float = 0.0
    memory: float = 0.0

    def __add__(self, other: ModelSample) -> ModelSample:
        return ModelSample(self.cores + other.cores, self.memory + other.memory)


@dataclass(frozen=True, slots=True)
class TrainingSamples:
    """One sample per model: cores and bytes, float64[keys]."""

    keys: list[str]
    cores: Floats
    memory: Floats

    @classmethod
    def of(cls, samples: Mapping[str, ModelSample]) -> Self:
        """From a mapping by key."""
        cores = np.array([sample.cores for sample in samples.values()])
        memory = np.array([sample.memory for sample in samples.values()])
        return cls(list(samples), cores, memory)


def collect_samples(
    cache: MetricCache, pods: Mapping[str, PodMeta], memory_policy: str, start: float, end: float
) -> TrainingSamples | None:
    """Samples of pods, node, priority classes and system over start..end; None if nothing was measured.

    Memory is counted by NodeMetric's policy. A pod without CPU or memory samples is skipped, a class without pods gets
    0; without figures of the node, neither the node nor the system gets a sample.
    """
    samples = _pods(cache, pods, memory_policy, start, end)
    node = _node(cache, memory_policy, start, end)
    if not samples and node is None:
        return None
    everything = sum(samples.values(), ModelSample())
    classes = {
        class_key(name): sum((samples[uid] for uid in samples if pods[uid].priority_class == name), ModelSample())
        for name in TRAINED_CLASSES
    }
    samples.update(classes)
    if node is not None:
        samples[NODE] = node
        samples[SYSTEM] = ModelSample(
            max(node.cores - everything.cores, 0.0), max(node.memory - everything.memory, 0.0)
        )
    return TrainingSamples.of(samples)


def _pods(
    cache: MetricCache, pods: Iterable[str], memory_policy: str, start: float, end: float
) -> dict[str, ModelSample]:
    keys = [(uid,) for uid in pods]
    kinds = ("pod_cpu_usage", memory_kind(cache, "pod", memory_policy, start))
    cpu, memory = (cache.window(kind, start, end, keys).aggregate([P90])[P90] for kind in kinds)
    return {key[0]: ModelSample(cpu[key], memory[key]) for key in keys if key in cpu and key in memory}


def _node(cache: MetricCache, memory_policy: str, start: float, end: float) -> ModelSample | None:
    kinds = ("node_cpu_usage", memory_kind(cache, "node", memory_policy, start))
    cpu, memory = (cache.query(kind, start, end) for kind in kinds)
    if not len(cpu.values) or not len(memory.values):
        return None
    return ModelSample(cpu.aggregate(P90), memory.aggregate(P90))
