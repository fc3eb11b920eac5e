"""The controllers inside the embedded API server, which use the registry directly.

    controllers = build(registry, ca_pem)            # each has `await start()` and `await stop()`
    subresources = SubresourceHandlers(…, gate=eviction_gate)

Each has its own file, is level-triggered and may be stopped and started at any time (see `base`).
"""

from __future__ import annotations

import time

from control.standalone.controllers.base import EmbeddedController
from control.standalone.controllers.daemonset import DaemonSetController
from control.standalone.controllers.deployment import DeploymentController
from control.standalone.controllers.disruption import DisruptionController, eviction_gate
from control.standalone.controllers.endpoints import EndpointSlices
from control.standalone.controllers.garbage import GarbageCollector
from control.standalone.controllers.job import JobController
from control.standalone.controllers.namespaces import NamespaceDefaults, NamespaceDeletion
from control.standalone.controllers.nodes import NodeLifecycle, TaintEviction
from control.standalone.controllers.podgc import PodGarbage
from control.standalone.controllers.replicaset import ReplicaSetController
from control.standalone.controllers.statefulset import StatefulSetController
from control.standalone.registry import ObjectRegistry

__all__ = ["EmbeddedController", "build", "eviction_gate"]


def build(registry: ObjectRegistry, ca_pem: str) -> list[EmbeddedController]:
    """All controllers, in their start order."""
    return [
        NamespaceDefaults(registry, ca_pem),
        NamespaceDeletion(registry),
        GarbageCollector(registry),
        NodeLifecycle(registry, time.monotonic),
        TaintEviction(registry),
        PodGarbage(registry, time.monotonic),
        DisruptionController(registry),
        ReplicaSetController(registry),
        DeploymentController(registry),
        DaemonSetController(registry),
        StatefulSetController(registry),
        JobController(registry),
        EndpointSlices(registry),
    ]
