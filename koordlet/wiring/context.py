"""What every part of the wiring needs: options, the host, registries, the runner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from koordlet.api.gates import KOORDLET
from koordlet.app.clock import boot_clock
from koordlet.app.gates import FeatureGates
from koordlet.app.health import HealthChecks
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.app.runner import Runner
from koordlet.audit import Auditor, NullAuditor
from koordlet.metriccache import MetricCache
from koordlet.options import KoordletOptions
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.earlytrigger import EarlyTrigger
from koordlet.statesinformer.pods.pleg import Pleg
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.naming import detect_driver, kubepods_dir
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host

log = get_logger(__name__)

STALE_ROUNDS, STALE_SECONDS = 5, 60.0
"""A fact is out of date once whoever tells it has failed so often in a row, and for so long."""


class Context:
    """Made first; parts add to `runner`, `health` and `routes`."""

    def __init__(self, options: KoordletOptions) -> None:
        self.options = options
        self.gates = FeatureGates(KOORDLET)
        self.gates.set({"PSICollector": True})  # on unless named: docs/decisions.md
        self.gates.set(options.feature_gates)
        self.host = Host(options.roots())
        self.registries = Registries()
        self.registries.view("start_time", lambda started=time.time(): [((self.node_name,), started)])
        self.health, self.runner = HealthChecks(), Runner()
        self.cache = MetricCache(
            tick=options.collect_res_used_interval,
            max_rows=options.metric_cache_max_series,
            max_seconds=options.tsdb_retention_duration,
            max_bytes=options.tsdb_max_bytes,
        )
        self.files = CgroupFS(self.host, kube_root=_kube_root(self.host))
        self.pleg = Pleg(Path(self.files.hierarchy("cpu")))
        self.auditor: Auditor = NullAuditor()
        self.routes: list[web.RouteDef] = []
        """Pages beside metrics and health."""
        self.boot_id = (self.host.roots.proc / "sys/kernel/random/boot_id").read_text().strip()
        for feature, reason in self.host.facts.reasons().items():
            log.info("host lacks a feature", feature=feature, reason=reason)

    @property
    def node_name(self) -> str:
        """The Node object's once it is known."""
        return self.registries.node or self.options.node_name

    def periodic(self, name: str, period: float, fn: Callable[[], object], *, immediate: bool = True) -> Periodic:
        """A task with its metrics; the caller adds it to the runner."""
        return Periodic(name, period, fn, immediate=immediate, registry=self.registries.internal)

    def fact(self, key: str, period: float) -> Any | None:
        """What the cache has under `key`; None when its collector, which runs every `period` seconds, has told nothing
        for too long: who acts on the node must not go by what it was once (spec 02 §4.4)."""
        return self.cache.facts.get(key, newer_than=boot_clock() - max(STALE_ROUNDS * period, STALE_SECONDS))

    def prompt(self, task: Periodic) -> EarlyTrigger:
        """Triggers `task` when pods come and go."""
        prompt = EarlyTrigger(task.trigger)
        self.runner.add_stop(f"prompt {task.name}", prompt.close)
        return prompt

    def supports(self, resource: str, directory: str) -> bool:
        """Whether the kernel has it there."""
        return bool(self.files.support(resource, directory))

    def cgroup_ids(self) -> Iterator[tuple[str, int]]:
        """(directory, id) of every cgroup of the cpu hierarchy, parents first."""
        return tree.walk_ids(self.files.hierarchy("cpu"))


def _kube_root(host: Host) -> str:
    mount = host.facts.cgroup_mounts.hierarchy("cpu")
    driver = detect_driver(mount) if mount is not None else None
    return kubepods_dir(driver) if driver is not None else ""
