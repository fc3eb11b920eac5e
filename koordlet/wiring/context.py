"""Shared inputs of the composition: options, the host, registries, the audit log, the runner."""

from __future__ import annotations

import socket
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
from koordlet.audit import Auditor, LogAuditor, NullAuditor
from koordlet.audit.logfile import AuditLogFile
from koordlet.kube.securepages import SecurePages
from koordlet.metriccache import MetricCache
from koordlet.options import KoordletOptions
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.earlytrigger import EarlyTrigger
from koordlet.statesinformer.pods.pleg import Pleg
from koordlet.system.cgroup.naming import detect_driver, kubepods_dir
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from koordlet.system.kernel import boot_id

log = get_logger(__name__)

MAX_MISSED_ROUNDS = 5
MIN_FACT_LIFETIME_S = 60.0
"""A fact expires after `MAX_MISSED_ROUNDS` rounds of its collector without success, but not before this time."""


class WiringContext:
    """Built first; the parts of the composition add to `runner`, `health` and `routes`."""

    def __init__(self, options: KoordletOptions) -> None:
        self.options = options
        self.gates = FeatureGates(KOORDLET)
        self.gates.set({"PSICollector": True})  # enabled by default: docs/decisions.md
        self.gates.set(options.feature_gates)
        self.host = Host(options.roots())
        self.registries = Registries()
        self.registries.view("start_time", lambda started=time.time(): [((self.node_name,), started)])
        self.health = HealthChecks()
        self.runner = Runner()
        self.cache = MetricCache(
            tick=options.collect_res_used_interval,
            max_rows=options.metric_cache_max_series,
            max_seconds=options.tsdb_retention_duration,
            max_bytes=options.tsdb_max_bytes,
        )
        self.files = CgroupFS(self.host, kube_root=_kube_root(self.host))
        self._cpu_tree = self.host.repeated_walk(self.files.hierarchy("cpu"))
        self.pleg = Pleg(Path(self.files.hierarchy("cpu")))
        self.audit_log = (
            AuditLogFile(Path(options.audit_log_dir), options.audit_max_disk_space_mb)
            if self.gates.enabled("AuditEvents")
            else None
        )
        self.auditor: Auditor = (
            NullAuditor() if self.audit_log is None else LogAuditor(self.audit_log, options.audit_verbose)
        )
        self.routes: list[web.RouteDef] = []
        """HTTP pages in addition to metrics and health."""
        self.listener: socket.socket | None = None
        """Listens at `--addr` since before anything on the node is changed."""
        self.secure_pages: SecurePages | None = None
        """Authorizes callers of the pages; None: plain HTTP."""
        self.boot_id = boot_id(self.host.roots)
        for feature, reason in self.host.facts.reasons().items():
            log.info("The host lacks a feature", feature=feature, reason=reason)

    @property
    def node_name(self) -> str:
        """The Node object's name once it is known, else the configured name."""
        return self.registries.node or self.options.node_name

    def set_node_name(self, name: str) -> None:
        """Set the name of the Node, which enables metrics with a `node` label."""
        self.registries.node = name

    def periodic(self, name: str, period: float, fn: Callable[[], object], *, immediate: bool = True) -> Periodic:
        """A periodic task with metrics; the caller adds it to the runner."""
        return Periodic(name, period, fn, immediate=immediate, registry=self.registries.internal)

    def fact(self, key: str, period: float) -> Any | None:
        """The fact under `key`; None if its collector, which runs every `period` seconds, has not updated it for too
        long: actions on the node must not be based on outdated facts (spec 02 §4.4)."""
        lifetime = max(MAX_MISSED_ROUNDS * period, MIN_FACT_LIFETIME_S)
        return self.cache.facts.get(key, newer_than=boot_clock() - lifetime)

    def early_trigger(self, task: Periodic, length: Callable[[], int] = lambda: 0) -> EarlyTrigger:
        """Runs `task` early when pods are added or deleted. `length`: bytes that it reads."""
        trigger = EarlyTrigger(task.trigger, length=length)
        self.runner.add_stop(f"early trigger {task.name}", trigger.close)
        return trigger

    def supports(self, resource: str, directory: str) -> bool:
        """Whether the kernel supports this resource in this cgroup directory."""
        return bool(self.files.support(resource, directory))

    def cgroup_ids(self) -> Iterator[tuple[str, int]]:
        """(directory, id) of all cgroups of the cpu hierarchy, parents first."""
        return self._cpu_tree.walk_ids()


def _kube_root(host: Host) -> str:
    mount = host.facts.cgroup_mounts.hierarchy("cpu")
    driver = detect_driver(mount) if mount is not None else None
    return kubepods_dir(driver) if driver is not None else ""
