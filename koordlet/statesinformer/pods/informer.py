"""The pods of this node, polled from the kubelet (spec 02 §3.4).

A failed request or an empty list keeps the known pods: a kubelet that has just restarted returns an empty list, and
dropping all pods for a moment would reset everything that depends on them. A pod whose cgroups cannot be derived (for
example a container id of an unknown runtime) is logged once and left out; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from koordlet.api.core import ContainerStatus, Pod, pod_qos_class
from koordlet.api.priority import priority_class
from koordlet.api.qos import qos_class
from koordlet.app.logging import get_logger
from koordlet.statesinformer.pods.cpuallocation import NO_ALLOCATION, accept, allocation_of
from koordlet.statesinformer.pods.deviceallocation import NO_DEVICES, MinorsOf, accept_devices, devices_of_pod
from koordlet.statesinformer.pods.kubelet import KubeletClient, KubeletError
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from koordlet.statesinformer.pods.taskids import TERMINATED_PHASES
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, NamingError, container_name, pod_dir
from koordlet.system.cpu.cpuset import CPUSet

log = get_logger(__name__)

TaskIds = Callable[[PodMeta, CgroupDriver], Mapping[str, tuple[int, ...]]]
SandboxDir = Callable[[PodMeta, CgroupDriver], str]


def describe(pod: Pod, driver: CgroupDriver) -> PodMeta:
    """`pod` with its QoS, priority and cgroup directories.

    Its containers are those whose status has an id, including sidecars among the init containers. Raises NamingError
    naming the container whose id is invalid.
    """
    kube_qos = pod_qos_class(pod)
    directory = pod_dir(driver, KubeQOS(kube_qos), pod.metadata.uid)
    sidecars = {c.name for c in pod.spec.init_containers if c.is_sidecar}
    statuses = [
        *(s for s in pod.status.init_container_statuses if s.name in sidecars),
        *pod.status.container_statuses,
    ]
    return PodMeta(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        qos=qos_class(pod),
        priority_class=priority_class(pod),
        kube_qos=kube_qos,
        cgroup_dir=directory,
        containers=tuple(_container(status, driver, directory) for status in statuses if status.container_id),
        pod=pod,
        cpu_allocation=allocation_of(pod),
        device_allocation=devices_of_pod(pod),
    )


def _container(status: ContainerStatus, driver: CgroupDriver, directory: str) -> ContainerMeta:
    try:
        base = container_name(driver, status.container_id)
    except NamingError as error:
        raise NamingError(f"container {status.name}: {error}") from error
    return ContainerMeta(status.container_id, status.name, f"{directory}/{base}", status.state.running is not None)


class PodsInformer:
    """`pods` is the kubelet's last non-empty list."""

    def __init__(
        self,
        kubelet: KubeletClient,
        driver: Callable[[], CgroupDriver],
        *,
        on_sync: Callable[[], None] = lambda: None,
        task_ids: TaskIds | None = None,
        sandbox_dir: SandboxDir | None = None,
        online_cpus: CPUSet | None = None,
        device_minors: MinorsOf = lambda kind: None,
    ) -> None:
        """`task_ids` reads the threads of a pod's containers, `sandbox_dir` the cgroup of its pause container; None
        leaves them out. `online_cpus`: the CPUs of the node, None while unknown. `device_minors`: its
        devices."""
        self._online_cpus = online_cpus
        self._device_minors = device_minors
        self._kubelet = kubelet
        self._driver = driver
        self._on_sync = on_sync
        self._task_ids = task_ids
        self._sandbox_dir = sandbox_dir
        self._logged_uids: set[str] = set()
        self._described: dict[str, tuple[Pod, CgroupDriver, PodMeta]] = {}
        """UID -> (pod, driver, description) of the last list, without regard to other pods."""
        self.pods: MappingProxyType[str, PodMeta] = MappingProxyType({})
        self.synced = False
        """Whether `pods` was set at least once."""
        self._last_request = 0
        self._last_applied = 0
        """Number of the request whose answer is in `pods`."""
        self.answered = False
        """Whether the kubelet answered at least once, possibly with an empty list."""
        self.error = "the kubelet was not queried yet"
        """Why the last `sync` changed nothing; empty after success."""

    async def sync(self) -> None:
        """Query the kubelet. Sets `error` and raises KubeletError, so that the periodic task counts the failure. Of
        concurrent requests the answer to the one that began last is kept."""
        self._last_request += 1
        request = self._last_request
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self.error = str(error)
            raise
        self.answered = True
        if not pods:
            self.error = "the kubelet returned no pods; keeping the known ones" if self.pods else ""
            return
        if request > self._last_applied:
            self._last_applied = request
            self.replace(pods)

    def replace(self, pods: Iterable[Pod]) -> None:
        """Set `pods` to this list. If nothing changed, `pods` stays the same object."""
        driver = self._driver()
        described: dict[str, tuple[Pod, CgroupDriver, PodMeta]] = {}
        metas: dict[str, PodMeta] = {}
        for pod in pods:
            uid = pod.metadata.uid
            try:
                if not uid:
                    raise NamingError("metadata.uid is empty")
                meta = self._with_sandbox(self._description(pod, driver), driver)
                described[uid] = pod, driver, meta
                metas[uid] = meta if self._task_ids is None else replace(meta, task_ids=self._task_ids(meta, driver))
                self._logged_uids.discard(uid)
            except (NamingError, ValueError) as error:
                if uid not in self._logged_uids:
                    self._logged_uids.add(uid)
                    log.warning("Pod left out", pod=pod.metadata.key, uid=uid, error=str(error))
        self._logged_uids.intersection_update(pod.metadata.uid for pod in pods)
        self._described = described
        accepted = self._with_accepted_devices(self._with_accepted_cpus(metas))
        if not _same(self.pods, accepted):
            self.pods = MappingProxyType(accepted)
        self.synced = True
        self.error = ""
        self._on_sync()

    def _description(self, pod: Pod, driver: CgroupDriver) -> PodMeta:
        """`describe`, once per state of a pod: the kubelet client returns the same object for an unchanged pod."""
        known = self._described.get(pod.metadata.uid)
        return known[2] if known is not None and known[0] is pod and known[1] is driver else describe(pod, driver)

    def _with_accepted_cpus(self, metas: Mapping[str, PodMeta]) -> dict[str, PodMeta]:
        """The pods with the CPUs that they may have beside each other."""
        held = {uid: meta.cpu_allocation.cpus for uid, meta in self.pods.items()}
        allocations = {
            uid: (meta.pod, meta.cpu_allocation)
            for uid, meta in metas.items()
            if meta.pod is not None and meta.cpu_allocation is not NO_ALLOCATION
        }
        result = dict(metas)
        for uid, allocation in accept(allocations, held, self._online_cpus).items():
            meta = metas[uid]
            if allocation is not meta.cpu_allocation:
                result[uid] = replace(meta, cpu_allocation=allocation)
            problem = allocation.error or allocation.refused
            if problem:
                name = f"{meta.namespace}/{meta.name}"
                log.once(f"cpus:{uid}:{problem}", "CPU allocation ignored", pod=name, error=problem)
        return result

    def _with_accepted_devices(self, metas: Mapping[str, PodMeta]) -> dict[str, PodMeta]:
        """The pods with the devices that they may have beside each other."""
        held = {uid: meta.device_allocation for uid, meta in self.pods.items() if meta.device_allocation.shares}
        allocations = {
            uid: (meta.pod, meta.device_allocation)
            for uid, meta in metas.items()
            if meta.pod is not None and meta.device_allocation is not NO_DEVICES
        }
        result = dict(metas)
        for uid, allocation in accept_devices(allocations, held, self._device_minors).items():
            meta = metas[uid]
            if allocation is not meta.device_allocation:
                result[uid] = replace(meta, device_allocation=allocation)
            problem = allocation.error or allocation.refused
            if problem:
                name = f"{meta.namespace}/{meta.name}"
                log.once(f"devices:{uid}:{problem}", "Device allocation ignored", pod=name, error=problem)
        return result

    def _with_sandbox(self, meta: PodMeta, driver: CgroupDriver) -> PodMeta:
        """Reads the sandbox once per set of container ids: in a new sandbox all containers get new ids. A terminated
        pod has none."""
        if self._sandbox_dir is None or meta.sandbox_dir:
            return meta
        if meta.pod is not None and meta.pod.status.phase in TERMINATED_PHASES:
            return meta
        old = self.pods.get(meta.uid)
        same = old is not None and old.sandbox_dir and _ids(old) == _ids(meta)
        directory = old.sandbox_dir if old is not None and same else self._sandbox_dir(meta, driver)
        return replace(meta, sandbox_dir=directory) if directory else meta


def _ids(meta: PodMeta) -> tuple[str, ...]:
    return tuple(container.id for container in meta.containers)


def _same(old: Mapping[str, PodMeta], new: Mapping[str, PodMeta]) -> bool:
    """Whether both have the same pods, which are equal."""
    return old.keys() == new.keys() and all(meta is old[uid] or meta == old[uid] for uid, meta in new.items())
