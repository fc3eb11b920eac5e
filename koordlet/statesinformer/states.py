"""This node's objects and what runs on it: the state that collectors, strategies and reporters share (spec 02 §3).

Two sources behind one interface: `KubeStates` (API server and kubelet) and `LocalStates` (the cgroup tree alone). Both
give `workloads`, an immutable picture that changes identity only when its content does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from koordlet.statesinformer.nodemetric.status import Policy
from koordlet.statesinformer.nodeslo.effective import Accepted
from koordlet.statesinformer.pods.informer import PodsInformer, SandboxDir, TaskIds
from koordlet.statesinformer.pods.kubelet import Endpoint, KubeletClient, KubeletError, endpoint_of
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

log = get_logger(__name__)


class States(Protocol):
    """What runs on the node."""

    @property
    def workloads(self) -> Workloads:
        """The current picture."""
        ...


SPARED = 10
"""Looks at the tree that can be spared in a row."""


class LocalStates:
    """`koordlet --standalone`: whatever cgroups say; call `refresh` now and then."""

    def __init__(self, dirs: Callable[[], Iterable[str]]) -> None:
        self._dirs = dirs
        self._known: tuple[str, ...] = ()
        self._tree: tuple[int, int] | None = None
        self._spared = 0
        self.workloads = Workloads()
        self.tree: Callable[[], tuple[int, int]] | None = None
        """(how often somebody else has walked the same tree, at how many of these times it was another than before),
        where somebody does and notices every cgroup that comes or goes."""

    def expire(self) -> None:
        """Look at the next `refresh` in any case."""
        self._tree = None

    def refresh(self) -> None:
        """Look again; the picture stays the same object if nothing changed. Where the tree has been walked since the
        last time and was the same, there is nothing to look at; a renamed cgroup is found after `SPARED` times."""
        tree, before = None if self.tree is None else self.tree(), self._tree
        unchanged = tree is not None and before is not None and tree[0] > before[0] and tree[1] == before[1]
        if unchanged and self._spared < SPARED:
            self._tree, self._spared = tree, self._spared + 1
            return
        dirs = tuple(self._dirs())
        self._tree, self._spared = tree, 0
        if dirs != self._known:
            self._known, self.workloads = dirs, discover(dirs, self.workloads.version + 1)


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
    """The node's own objects by watch, its pods by polling the kubelet.

    The API server away: the last known state stays. No NodeSLO: no host applications (spec 02 §1.2).
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        found_driver: Callable[[], CgroupDriver | None],
        told_driver: Callable[[int], CgroupDriver] | None = None,
        ask_config: bool = True,
        address_type: str = "InternalIP",
        insecure: bool = False,
        read_only_port: int = 10255,
    ) -> None:
        """`found_driver`: what the cgroup tree says of the kubelet's driver. `told_driver`: what the kubelet's process
        was told, by its port; raises NamingError. `ask_config`: whether the kubelet may be asked for its
        configuration."""
        self.node_name = node_name
        self.node = ObjectInformer(client, Node, node_name)
        self.node_slo = ObjectInformer(client, NodeSLO, node_name)
        self._accepted = Accepted()
        self.node_metric = ObjectInformer(client, NodeMetric, node_name)
        self.workloads = Workloads()
        self._found_driver, self._told_driver, self._ask_config = found_driver, told_driver, ask_config
        self._driver: CgroupDriver | None = None
        self._address = (address_type, insecure, read_only_port)
        self._policy = Policy()
        self._kubelet: KubeletClient | None = None
        self.pods: PodsInformer | None = None
        self.callbacks = Callbacks(
            {
                StateType.NODE_SLO_SPEC: lambda: None if self.node_slo.object is None else self.slo,
                StateType.ALL_PODS: lambda: True,
                StateType.NODE_METADATA: lambda: self.node.object,
            },
            pods=lambda: self._pods,
            host_applications=lambda: self.slo.host_applications,
        )
        self.node_slo.add_handler(
            on_add=lambda new: self._slo_changed(None, new),
            on_update=self._slo_changed,
            on_delete=lambda _: self.rebuild(),
        )
        self.node.add_handler(on_add=lambda new: self._node_changed(None, new), on_update=self._node_changed)

    def ask(
        self, kubelet: KubeletClient, task_ids: TaskIds | None = None, sandbox_dir: SandboxDir | None = None
    ) -> PodsInformer:
        """Take pods from this kubelet, with the threads of their containers where `task_ids` reads them, and with their
        sandboxes where `sandbox_dir` finds them."""
        self._kubelet = kubelet
        self.pods = PodsInformer(
            kubelet, lambda: self.driver, on_sync=self._pods_synced, task_ids=task_ids, sandbox_dir=sandbox_dir
        )
        return self.pods

    def endpoint(self) -> Endpoint:
        """Where the kubelet of the Node listens; raises KubeletError while the Node is unknown."""
        node = self.node.object
        if node is None:
            raise KubeletError(f"node {self.node_name} is not known yet")
        address_type, insecure, port = self._address
        return endpoint_of(node, address_type, insecure=insecure, read_only_port=port)

    @property
    def driver(self) -> CgroupDriver:
        """The kubelet's cgroup driver: what its directories say; systemd while nothing says (spec 02 §2.1)."""
        if self._driver is None:
            self._driver = self._found_driver()
        return self._driver or CgroupDriver.SYSTEMD

    async def sync_pods(self) -> None:
        """One round with the kubelet; before its first pod the driver is asked of it too."""
        if self.pods is None or self._kubelet is None:
            raise KubeletError("no kubelet is configured")
        await self.node.synced.wait()  # the Node says where the kubelet listens
        if self._driver is None and self._found_driver() is None:
            self._driver = await self._ask_driver(self._kubelet)
        await self.pods.sync()

    async def _ask_driver(self, kubelet: KubeletClient) -> CgroupDriver | None:
        """What the kubelet says of itself, else what its process was told; None while nobody says."""
        try:
            config = await kubelet.config() if self._ask_config else {}
        except KubeletError as error:
            log.once(f"driver:{error}", "the kubelet does not tell its cgroup driver", error=str(error))
            config = {}
        name = str(config.get("cgroupDriver", ""))
        if name in (driver.value for driver in CgroupDriver):
            return CgroupDriver(name)
        node = self.node.object
        served = None if node is None else node.status.daemon_endpoints.kubelet_endpoint
        if self._told_driver is None or served is None or not served.port:
            return None
        try:
            return self._told_driver(served.port)
        except NamingError as error:
            log.once(f"driver:{error}", "the cgroup driver is not known; taking systemd's names", error=str(error))
            return None

    def rebuild(self) -> None:
        """Make the picture anew; keep the old object when nothing changed."""
        pods = self._pods
        subjects = kube_subjects(self.driver, pods, self.slo.host_applications)
        known = self.workloads
        if subjects == known.subjects:
            self.workloads = Workloads(known.version, pods, known.subjects)
        else:
            self.workloads = Workloads(known.version + 1, pods, subjects)

    @property
    def _pods(self) -> MappingProxyType[str, PodMeta]:
        return self.pods.pods if self.pods is not None else MappingProxyType({})

    def _slo_changed(self, old: NodeSLO | None, new: NodeSLO) -> None:
        self.rebuild()
        if old is None or old.spec != new.spec:
            self.callbacks.trigger(StateType.NODE_SLO_SPEC)

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
        found = self.node_slo.object
        return self._accepted.take(None if found is None else found.spec)

    @property
    def slo_problems(self) -> Problems:
        """Section of NodeSLO -> field -> why it is not in force."""
        self._accepted.take(None if self.node_slo.object is None else self.node_slo.object.spec)
        return self._accepted.problems

    @property
    def policy(self) -> Policy:
        """How NodeMetric wants to be filled; the default while there is no object."""
        found = self.node_metric.object
        return self._policy if found is None else Policy.of(found.spec.metric_collect_policy, found.spec.predict_policy)
