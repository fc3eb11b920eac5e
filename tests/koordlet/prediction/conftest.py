"""A prediction service over a metric cache that tests fill, with clocks that tests advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from koordlet.api.core import Node, Pod
from koordlet.api.encoding.wire import convert
from koordlet.metriccache import Batch, MetricCache
from koordlet.prediction.checkpoints import CheckpointDirectory
from koordlet.prediction.models import PredictionModels
from koordlet.prediction.service import NodeObjects, PredictionService, PredictionSettings
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import PodMeta, Workloads

WALL = 1_782_864_000.0  # 2026-07-01T00:00:00Z
BOOT = 50_000.0


def pod_meta(uid: str, cpu: str = "1", memory: str = "1Gi", priority: str = "koord-prod", **metadata: Any) -> PodMeta:
    """A pod of one container, without a creation time unless `metadata` has one."""
    body = {
        "metadata": {"name": uid, "namespace": "default", "uid": uid, **metadata},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]},
        "status": {"phase": "Running"},
    }
    return PodMeta(uid, uid, "default", "LS", priority, "Burstable", f"kubepods/pod{uid}", (), convert(body, Pod))


def node_of(cpu: str = "3", memory: str = "3Gi", **annotations: str) -> Node:
    body = {
        "metadata": {"name": "node", "annotations": annotations},
        "status": {"allocatable": {"cpu": cpu, "memory": memory}},
    }
    node: Node = convert(body, Node)
    return node


@dataclass
class World:
    """The service's inputs."""

    directory: Path
    cache: MetricCache = field(default_factory=MetricCache)
    pods: dict[str, PodMeta] | None = field(default_factory=dict)
    node: Node | None = field(default_factory=node_of)
    memory_policy: str = ""
    passed: float = 0.0
    """seconds since the start, on both clocks"""
    step: float = 0.0
    """seconds by which the wall clock was stepped forward"""
    settings: PredictionSettings = field(default_factory=PredictionSettings)
    registries: Registries = field(default_factory=Registries)

    def service(self, **change: Any) -> PredictionService:
        """A new service, as after a start of koordlet."""
        objects = NodeObjects(
            lambda: None if self.pods is None else Workloads(1, MappingProxyType(dict(self.pods))),
            lambda: self.node,
            lambda: self.memory_policy,
        )
        self.registries = Registries()
        self.registries.node = "node"
        return PredictionService(
            self.cache,
            objects,
            PredictionModels(),
            CheckpointDirectory(self.directory),
            replace(self.settings, **change),
            self.registries,
            clock=lambda: BOOT + self.passed,
            wall=lambda: WALL + self.step + self.passed,
        )

    def measure(self, **samples: float) -> None:
        """Store samples such as `node_cpu_usage=1, pod_cpu_usage__uid=2` at this time."""
        batch = Batch(BOOT + self.passed)
        for name, value in samples.items():
            kind, *labels = name.split("__")
            batch.add(kind, value, *labels)
        self.cache.commit(batch)

    def minute(self, service: PredictionService, **samples: float) -> None:
        """Advance a minute, store samples, train."""
        self.passed += 60
        self.measure(**samples)
        service.train()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "checkpoints")


@pytest.fixture
def make_pod() -> Callable[..., PodMeta]:
    return pod_meta


@pytest.fixture
def make_node() -> Callable[..., Node]:
    return node_of
