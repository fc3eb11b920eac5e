"""Keeps the NodeResourceTopology of this node up to date (spec 02 §3.8).

`compute` computes the status and publishes it within koordlet if it changed (`local`). If an input is not known yet or
cannot be read, the round is skipped, the reason is logged once and the last status stays in force. `report`, used with
the gate NodeTopologyReport, writes the difference to the stored object. The two are called by tasks of their own: an
API server that does not answer must not delay the local copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from koordlet.api.annotations.topology import CPUSharedPool
from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.kube import Client
from koordlet.prometheus.registries import Registries, Rows
from koordlet.statesinformer.nrt.kubelet import (
    STATIC,
    KubeletConfig,
    KubeletStateError,
    kubelet_config,
    read_cpu_manager_state,
)
from koordlet.statesinformer.nrt.patch import new_object, patch_for
from koordlet.statesinformer.nrt.pools import SharePools, pool_cpus
from koordlet.statesinformer.nrt.status import MachineInfo, TopologyError, TopologyStatus, compute
from koordlet.statesinformer.ownobject import OwnObject
from koordlet.statesinformer.pods.kubelet import KubeletError
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

REPORTS_METRIC = "node_topology_reports_total"


class TopologyReporter:
    """Call `compute` and `report` periodically. Add the informer `stored` to the runner."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        node: Callable[[], Node | None],
        pods: Callable[[], Collection[PodMeta] | None],
        machine: Callable[[], MachineInfo | None],
        kubelet: Callable[[], Awaitable[Mapping[str, Any]]] | None,
        kubelet_dir: Path,
        registries: Registries,
        on_change: Callable[[], object],
        per_cpu: bool = False,
    ) -> None:
        """`node`, `pods` and `machine` return None while they are unknown. `kubelet` reads the kubelet's configuration;
        None if it is not queried. `on_change` is called after `local` changed. `per_cpu`: export a gauge per CPU."""
        self._own = OwnObject(
            client, NodeResourceTopology, node_name, registries, reports=REPORTS_METRIC, title="NodeResourceTopology"
        )
        self.stored = self._own.stored
        self.local: NodeResourceTopology | None = None
        """The desired object, for strategies and hooks, whether or not it could be written."""
        self.status: TopologyStatus | None = None
        self.problem: str | None = "not computed yet"
        """Why the last round computed no status; fits `Health.check`."""
        self._node_name = node_name
        self._node = node
        self._pods = pods
        self._machine = machine
        self._kubelet = kubelet
        self._kubelet_dir = kubelet_dir
        self._on_change = on_change
        registries.view("cpuset_share_pool_cpu_cores", lambda: self._pool_size(lambda pools: pools.ls))
        registries.view("cpuset_be_share_pool_cpu_cores", lambda: self._pool_size(lambda pools: pools.be))
        if per_cpu:
            registries.view("cpuset_share_pool_info", lambda: self._pool_members(lambda pools: pools.ls))
            registries.view("cpuset_be_share_pool_info", lambda: self._pool_members(lambda pools: pools.be))

    async def compute(self) -> None:
        """Compute and publish."""
        node = self._node()
        try:
            status = await self._compute(node)
        except (TopologyError, KubeletError, KubeletStateError, WireError) as error:
            self.problem = str(error)
            log.once(f"topology:{error}", "Cannot compute the node topology", error=str(error))
            self._own.count_skipped()
            return
        assert node is not None  # _compute raises without a Node
        self.problem = None
        for subject, problem in status.problems.items():
            log.once(f"topology:{subject}:{problem}", "Left out of the node topology", error=problem)
        if status != self.status:
            self.status = status
            self.local = new_object(node, status)
            self._on_change()

    async def report(self) -> None:
        """Write, unless the last round was skipped; raises KubeError after counting it."""
        node, status = self._node(), self.status
        if node is not None and status is not None and self.problem is None:
            await self._own.update(lambda: new_object(node, status), lambda stored: patch_for(stored, status))

    async def _compute(self, node: Node | None) -> TopologyStatus:
        pods = self._pods()
        machine = self._machine()
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

    def _pool_size(self, of: Callable[[SharePools], list[CPUSharedPool]]) -> Rows:
        return [] if self.status is None else [((), float(len(pool_cpus(of(self.status.pools)))))]

    def _pool_members(self, of: Callable[[SharePools], list[CPUSharedPool]]) -> Rows:
        return [] if self.status is None else [((str(cpu),), 1.0) for cpu in sorted(pool_cpus(of(self.status.pools)))]
