"""Hooks of a koordlet on a constructed node, for tests of runtimes that call them."""

from __future__ import annotations

import json
from typing import Any

from koordlet.prometheus import Registries
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.stages import FailurePolicy, Hooks
from tests.koordlet.qosmanager.conftest import make_view

GIB = 1 << 30
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
EXTENDED = json.dumps({"containers": {"c": {"requests": BATCH, "limits": BATCH}}})
PATIENCE = 60.0


class Node:
    """Hook calls of a koordlet on a constructed node."""

    def __init__(self, *plugins: Any, policy: FailurePolicy = FailurePolicy.IGNORE, base: str = "kubepods") -> None:
        """`base`: the kubelet's directory."""
        registries = Registries()
        self.announced = AnnouncedPods(dict, lambda: base, lambda: 0.0)
        self.rounds = 0
        hooks = Hooks([BatchResource(), *plugins], registries, policy=policy)
        self.calls = HookCalls(hooks, self.announced, make_view, self._follow, registries, round_timeout=PATIENCE)

    def _follow(self) -> None:
        self.rounds += 1
