"""Keeps the NodeResourceTopology of this node up to date (spec 02 §3.8).

Every round computes the status, publishes it within koordlet when it changed (`local`) and, with the gate
NodeTopologyReport, writes what differs from the stored object. Whatever is not known yet, or cannot be read, costs
the round and is said once; the last status stays in force. The API server away: the local copy goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.kube import Client
from koordlet.prometheus import Registries
from koordlet.statesinformer.nrt.kubelet import (
    STATIC,
    KubeletConfig,
    KubeletStateError,
    kubelet_config,
    read_cpu_manager_state,
)
from koordlet.statesinformer.nrt.patch import new_object, patch_for
from koordlet.statesinformer.nrt.pools import pool_cpus
from koordlet.statesinformer.nrt.status import Machine, TopologyError, TopologyStatus, compute
from koordlet.statesinformer.ownobject import OwnObject
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

WRITES = "node_topology_reports_total"


class TopologyReporter:
    """`report` is one round; `stored` must run as a service of its own."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        node: Callable[[], Node | None],
        pods: Callable[[], Collection[PodMeta] | None],
        machine: Callable[[], Machine | None],
        kubelet: Callable[[], Awaitable[Mapping[str, Any]]] | None,
        kubelet_dir: Path,
        registries: Registries,
        on_change: Callable[[], object],
        write: bool = True,
        per_cpu: bool = False,
    ) -> None:
        """`node`, `pods` and `machine` answer None while they do not know; `kubelet` is None when it is not asked.
        `on_change` is called after `local` changed."""
        self._own = OwnObject(
            client, NodeResourceTopology, node_name, registries, reports=WRITES, title="node topology"
        )
        self.stored = self._own.stored
        self.local: NodeResourceTopology | None = None
        """What this node's object should say; for strategies and hooks, whether or not it could be written."""
        self.status: TopologyStatus | None = None
        self.problem: str | None = "not computed yet"
        """Why the last round gave no status; fits `Health.check`."""
        self._node_name = node_name
        self._node, self._pods, self._machine = node, pods, machine
        self._kubelet, self._kubelet_dir = kubelet, kubelet_dir
        self._write, self._on_change = write, on_change
        registries.view("cpuset_share_pool_cpu_cores", lambda: self._pool_size("ls"))
        registries.view("cpuset_be_share_pool_cpu_cores", lambda: self._pool_size("be"))
        if per_cpu:
            registries.view("cpuset_share_pool_info", lambda: self._pool_members("ls"))
            registries.view("cpuset_be_share_pool_info", lambda: self._pool_members("be"))

    async def report(self) -> None:
        """Compute, publish, write; raises what the API server said, after counting it."""
        node = self._node()
        try:
            status = await self._compute(node)
        except (TopologyError, KubeletError, KubeletStateError, WireError) as error:
            self.problem = str(error)
            log.once(f"topology:{error}", "node topology is not told in this round", error=str(error))
            self._own.skipped()
            return
        assert node is not None  # _compute refuses without
        self.problem = None
        for subject, problem in status.problems.items():
            log.once(f"topology:{subject}:{problem}", "passed over for the node topology", error=problem)
        if status != self.status:
            self.status, self.local = status, new_object(node, status)
            self._on_change()
        if self._write:
            await self._own.bring_up_to_date(lambda: new_object(node, status), lambda found: patch_for(found, status))

    async def _compute(self, node: Node | None) -> TopologyStatus:
        pods, machine = self._pods(), self._machine()
        if node is None:
            raise TopologyError(f"node {self._node_name} is not known yet")
        if machine is None:
            raise TopologyError("the CPU and NUMA layout is not known")
        if pods is None:
            raise TopologyError("the node's pods are not known yet")
        kubelet: KubeletConfig | None = None
        state: Mapping[str, Mapping[str, str]] = {}
        if self._kubelet is not None:
            kubelet = kubelet_config(await self._kubelet())
            if kubelet.cpu_manager_policy == STATIC:
                state = read_cpu_manager_state(self._kubelet_dir)
        return compute(machine, node, tuple(pods), kubelet=kubelet, kubelet_state=state)

    # --- Prometheus

    def _pool_size(self, pool: str) -> list[tuple[tuple[str, ...], float]]:
        status = self.status
        return [] if status is None else [((), float(len(pool_cpus(getattr(status.pools, pool)))))]

    def _pool_members(self, pool: str) -> list[tuple[tuple[str, ...], float]]:
        status = self.status
        return [] if status is None else [((str(cpu),), 1.0) for cpu in sorted(pool_cpus(getattr(status.pools, pool)))]
