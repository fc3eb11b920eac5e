"""Durations of writes, for Prometheus (spec 03 §6).

Every write is counted in `resource_update_duration_milliseconds`. Writes for owners that follow pods, which Koordinator
calls reconcilers, are also counted by level and resource. Restoring a setting has no owner and is not a reconciler's.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.settings import Setting
from koordlet.system.cgroup.owners import OwnerKind, classify

BUCKETS = tuple(0.01 * 4**power for power in range(8))
"""Milliseconds."""
SCHEMATA = ("resctrl.L3", "resctrl.MB")
LEVELS = {OwnerKind.KUBE_QOS: "kubeqos", OwnerKind.POD: "pod", OwnerKind.CONTAINER: "container"}
"""Koordinator's names. A file of the node has level node, any other cgroup that of a host application."""


def level(setting: Setting) -> str:
    """The level of a setting."""
    return "node" if setting.cgroup_dir is None else LEVELS.get(classify(setting.cgroup_dir).kind, "hostapp")


class Durations:
    """`observe` is called once per write. `reconcilers`: owners that follow pods."""

    def __init__(self, registries: Registries, reconcilers: Collection[str]) -> None:
        self._registries = registries
        self._reconcilers = frozenset(reconcilers)
        self._updates = registries.histogram("resource_update_duration_milliseconds", BUCKETS)
        self._reconciled = registries.histogram("runtime_hook_reconciler_invoked_duration_milliseconds", BUCKETS)

    def observe(self, setting: Setting, owner: str, started: float, *, failed: bool) -> None:
        """One write for `owner` that began at `started` (of `time.perf_counter`)."""
        duration_ms = (time.perf_counter() - started) * 1000
        kind = "default" if setting.cgroup_dir is None else "cgroup"
        kind = "resctrl-schema" if setting.resource in SCHEMATA else kind
        self._updates.labels(kind, "failed" if failed else "success").observe(duration_ms)
        if owner in self._reconcilers and self._registries.node:
            status = "failed" if failed else "succeeded"
            self._reconciled.labels(self._registries.node, level(setting), setting.resource, status).observe(
                duration_ms
            )
