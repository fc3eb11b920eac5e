"""This node's API objects and workloads: the state that collectors, strategies and reporters share (spec 02 §3).

One interface, two sources: `KubeStates` (API server and kubelet) and `LocalStates` (the cgroup tree alone). Both
provide `workloads`, an immutable snapshot whose identity changes only when its content does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from koordlet.api.core import Node
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.slo import NodeSLO, NodeSLOSpec
from koordlet.api.priority import class_of_qos
from koordlet.api.slocheck import Problems
from koordlet.api.sloconfig import HostApplicationSpec
from koordlet.app.logging import get_logger
from koordlet.kube import Client, ObjectInformer
from koordlet.statesinformer.callbacks import Callbacks, StateType
from koordlet.statesinformer.nodemetric.status import MIN_REPORT_SECONDS, ReportPolicy
from koordlet.statesinformer.nodeslo.effective import AcceptedNodeSLO
from koordlet.statesinformer.pods.deviceallocation import MinorsOf
from koordlet.statesinformer.pods.informer import PodsInformer, SandboxDir, TaskIds
from koordlet.statesinformer.pods.kubelet import KubeletClient, KubeletError, kubelet_url
from koordlet.statesinformer.pods.local import discover
from koordlet.statesinformer.pods.model import PodMeta, Subject, SubjectKind, Workloads, subjects_of
from koordlet.system.cgroup.naming import (
    CgroupDriver,
    KubeQOS,
    NamingError,
    host_application_dir,
    kubepods_dir,
    qos_dir,
)
from koordlet.system.cpu.cpuset import CPUSet

log = get_logger(__name__)


class States(Protocol):
    """What runs on the node."""

    @property
    def workloads(self) -> Workloads:
        """The current snapshot."""
        ...


MAX_SKIPPED_WALKS = 10
"""Walks of the cgroup tree that `LocalStates.refresh` skips in a row."""

WalkCounts = Callable[[], tuple[int, int]]
"""-> (walks of the cgroup tree by another component, walks of these that found a cgroup added or removed)."""


class LocalStates:
    """`koordlet --standalone`: the workloads that the cgroup tree shows. Call `refresh` periodically."""

    def __init__(self, dirs: Callable[[], Iterable[str]], walk_counts: WalkCounts | None = None) -> None:
        """`dirs` walks the cgroup tree. `walk_counts`: counters of another component that walks the same tree and
        notices every cgroup that is added or removed; None where there is none."""
        self._dirs = dirs
        self._walk_counts = walk_counts
        self._known_dirs: tuple[str, ...] = ()
        self._last_counts: tuple[int, int] | None = None
        self._skipped = 0
        self.workloads = Workloads()

    def expire(self) -> None:
        """Walk the tree at the next `refresh` in any case."""
        self._last_counts = None

    def refresh(self) -> None:
        """Walk the tree; `workloads` stays the same object if nothing changed. The walk is skipped if the other
        component walked the tree since the last refresh and found no change. A renamed cgroup changes no count and is
        found after `MAX_SKIPPED_WALKS` refreshes."""
        counts = None if self._walk_counts is None else self._walk_counts()
        last = self._last_counts
        unchanged = counts is not None and last is not None and counts[0] > last[0] and counts[1] == last[1]
        self._last_counts = counts
        if unchanged and self._skipped < MAX_SKIPPED_WALKS:
            self._skipped += 1
            return
        self._skipped = 0
        dirs = tuple(self._dirs())
        if dirs != self._known_dirs:
            self._known_dirs = dirs
            self.workloads = discover(dirs, self.workloads.version + 1)


def kube_subjects(
    driver: CgroupDriver, pods: Mapping[str, PodMeta], host_apps: Iterable[HostApplicationSpec]
) -> tuple[Subject, ...]:
    """QoS directories, pods with their containers, host applications."""
    qos = [
        Subject(SubjectKind.QOS, kube_qos.value, path or kubepods_dir(driver), kube_qos.value)
        for kube_qos in KubeQOS
        if (path := qos_dir(driver, kube_qos))
    ]
    below = [subject for pod in pods.values() for subject in subjects_of(pod)]
    return (*qos, *below, *(_host_app(driver, app) for app in host_apps))


def _host_app(driver: CgroupDriver, app: HostApplicationSpec) -> Subject:
    path = app.cgroup_path
    directory = host_application_dir(
        driver,
        app.name,
        app.qos,
        base=None if path is None else path.base,
        parent_dir="" if path is None else path.parent_dir,
        relative_path="" if path is None else path.relative_path,
    )
    priority = app.priority or class_of_qos(app.qos)
    return Subject(SubjectKind.HOST_APP, app.name, directory, app.name, qos=app.qos, priority_class=priority)


class KubeStates:
    """The node's own API objects by watch, its pods by polling the kubelet.

    While the API server is unreachable the last known state stays. Without a NodeSLO there are no host applications
    (spec 02 §1.2).
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        tree_driver: Callable[[], CgroupDriver | None],
        process_driver: Callable[[int], CgroupDriver] | None = None,
        query_config: bool = True,
        address_type: str = "InternalIP",
        insecure: bool = False,
        read_only_port: int = 10255,
        min_report_seconds: float = MIN_REPORT_SECONDS,
    ) -> None:
        """`tree_driver`: the kubelet's cgroup driver as the cgroup tree shows it. `process_driver`: the driver that the
        process listening on this port was started with; raises NamingError. `query_config`: whether the kubelet may be
        queried for its configuration. `min_report_seconds`: between two reports of NodeMetric."""
        self.node_name = node_name
        self.node = ObjectInformer(client, Node, node_name)
        self.node_slo = ObjectInformer(client, NodeSLO, node_name)
        self._accepted_slo = AcceptedNodeSLO()
        self.node_metric = ObjectInformer(client, NodeMetric, node_name)
        self.workloads = Workloads()
        self._tree_driver = tree_driver
        self._process_driver = process_driver
        self._query_config = query_config
        self._driver: CgroupDriver | None = None
        self._built_for: tuple[CgroupDriver, Sequence[HostApplicationSpec]] | None = None
        """What `workloads` was built from, in addition to the pods."""
        self._address = (address_type, insecure, read_only_port)
        self._min_report_seconds = min_report_seconds
        self._default_policy = ReportPolicy()
        self._kubelet: KubeletClient | None = None
        self.pods: PodsInformer | None = None
        self.callbacks = Callbacks(
            {
                StateType.ALL_PODS: lambda: True,
                StateType.NODE_METADATA: lambda: self.node.object,
            }
        )
        self.node_slo.add_handler(
            on_add=lambda _: self.rebuild(),
            on_update=lambda _, __: self.rebuild(),
            on_delete=lambda _: self.rebuild(),
        )
        self.node.add_handler(on_add=lambda new: self._node_changed(None, new), on_update=self._node_changed)

    def connect(
        self,
        kubelet: KubeletClient,
        task_ids: TaskIds | None = None,
        sandbox_dir: SandboxDir | None = None,
        online_cpus: CPUSet | None = None,
        device_minors: MinorsOf = lambda kind: None,
    ) -> PodsInformer:
        """Poll pods from this kubelet. `task_ids` adds the threads of their containers, `sandbox_dir` the cgroups of
        their sandboxes; None leaves them out. `online_cpus`, `device_minors`: CPUs and devices of the node."""
        self._kubelet = kubelet
        self.pods = PodsInformer(
            kubelet,
            lambda: self.driver,
            on_sync=self._pods_synced,
            task_ids=task_ids,
            sandbox_dir=sandbox_dir,
            online_cpus=online_cpus,
            device_minors=device_minors,
        )
        return self.pods

    def kubelet_url(self) -> str:
        """URL of the Node's kubelet; raises KubeletError while the Node is unknown."""
        node = self.node.object
        if node is None:
            raise KubeletError(f"node {self.node_name} is not known yet")
        address_type, insecure, port = self._address
        return kubelet_url(node, address_type, insecure=insecure, read_only_port=port)

    @property
    def driver(self) -> CgroupDriver:
        """The kubelet's cgroup driver, derived from its directories; systemd while it is unknown (spec 02 §2.1)."""
        if self._driver is None:
            self._driver = self._tree_driver()
        return self._driver or CgroupDriver.SYSTEMD

    async def sync_pods(self) -> None:
        """Query the kubelet once: its pods, and its cgroup driver while the cgroup tree shows none."""
        if self.pods is None or self._kubelet is None:
            raise KubeletError("no kubelet is configured")
        await self.node.synced.wait()  # the Node has the kubelet's address
        if self._driver is None and self._tree_driver() is None:
            self._driver = await self._query_driver(self._kubelet)
        await self.pods.sync()

    async def _query_driver(self, kubelet: KubeletClient) -> CgroupDriver | None:
        """The driver in the kubelet's configuration, else the one its process was started with; None if unknown."""
        try:
            config = await kubelet.config() if self._query_config else {}
        except KubeletError as error:
            log.once(f"driver:{error}", "Cannot read the kubelet's configuration for its driver", error=str(error))
            config = {}
        name = str(config.get("cgroupDriver", ""))
        if name in (driver.value for driver in CgroupDriver):
            return CgroupDriver(name)
        node = self.node.object
        endpoint = None if node is None else node.status.daemon_endpoints.kubelet_endpoint
        if self._process_driver is None or endpoint is None or not endpoint.port:
            return None
        try:
            return self._process_driver(endpoint.port)
        except NamingError as error:
            log.once(f"driver:{error}", "The cgroup driver is unknown, assuming systemd", error=str(error))
            return None

    def rebuild(self) -> None:
        """Build `workloads` again. Subjects and version stay when the subjects did not change."""
        pods, driver, apps = self._pods, self.driver, self.slo.host_applications
        old = self.workloads
        if pods is old.pods and self._built_for == (driver, apps):
            return
        self._built_for = driver, apps
        subjects = kube_subjects(driver, pods, apps)
        if subjects == old.subjects:
            self.workloads = Workloads(old.version, pods, old.subjects)
        else:
            self.workloads = Workloads(old.version + 1, pods, subjects)

    @property
    def _pods(self) -> MappingProxyType[str, PodMeta]:
        return self.pods.pods if self.pods is not None else MappingProxyType({})

    def _node_changed(self, old: Node | None, new: Node) -> None:
        before = None if old is None else (old.metadata.labels, old.metadata.annotations)
        if before != (new.metadata.labels, new.metadata.annotations):
            self.callbacks.trigger(StateType.NODE_METADATA)

    def _pods_synced(self) -> None:
        self.rebuild()
        self.callbacks.trigger(StateType.ALL_PODS)

    @property
    def slo(self) -> NodeSLOSpec:
        """The strategies in force; koordlet's defaults while there is no NodeSLO."""
        node_slo = self.node_slo.object
        return self._accepted_slo.update(None if node_slo is None else node_slo.spec)

    @property
    def slo_problems(self) -> Problems:
        """Section of NodeSLO -> field -> why it is not in force."""
        node_slo = self.node_slo.object
        self._accepted_slo.update(None if node_slo is None else node_slo.spec)
        return self._accepted_slo.problems

    @property
    def policy(self) -> ReportPolicy:
        """The policy in NodeMetric's spec; the default while the object does not exist."""
        node_metric = self.node_metric.object
        if node_metric is None:
            return self._default_policy
        return ReportPolicy.of(
            node_metric.spec.metric_collect_policy,
            node_metric.spec.predict_policy,
            min_report_seconds=self._min_report_seconds,
        )
