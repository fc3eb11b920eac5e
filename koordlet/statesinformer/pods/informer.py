"""The pods of this node, polled from the kubelet (spec 02 §3.4).

A failed request or an *empty* list keeps the pods that are known: a kubelet that just restarted answers with nothing,
and forgetting every pod for a moment would tear down all that hangs on them. A pod that cannot be placed (a container
id of an unknown runtime, say) is reported once and costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from koordlet.api.core import ContainerStatus, Pod, pod_qos_class
from koordlet.api.priority import priority_class
from koordlet.api.qos import qos_class
from koordlet.app.logging import get_logger
from koordlet.statesinformer.pods.kubelet import KubeletClient, KubeletError
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, NamingError, container_name, pod_dir

log = get_logger(__name__)

TaskIds = Callable[[PodMeta, CgroupDriver], Mapping[str, tuple[int, ...]]]
SandboxDir = Callable[[PodMeta, CgroupDriver], str]


def describe(pod: Pod, driver: CgroupDriver) -> PodMeta:
    """`pod` with its QoS, priority and cgroup directories.

    Containers are those whose status has an id, sidecars among the init containers included. Raises NamingError naming
    the container whose id cannot be placed.
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
    )


def _container(status: ContainerStatus, driver: CgroupDriver, directory: str) -> ContainerMeta:
    try:
        base = container_name(driver, status.container_id)
    except NamingError as error:
        raise NamingError(f"container {status.name}: {error}") from error
    return ContainerMeta(status.container_id, status.name, f"{directory}/{base}", status.state.running is not None)


class PodsInformer:
    """Keeps `pods` equal to what the kubelet said last."""

    def __init__(
        self,
        kubelet: KubeletClient,
        driver: Callable[[], CgroupDriver],
        *,
        on_sync: Callable[[], None] = lambda: None,
        task_ids: TaskIds | None = None,
        sandbox_dir: SandboxDir | None = None,
    ) -> None:
        """`task_ids` reads the threads of a pod's containers, `sandbox_dir` looks for its pause container; None leaves
        them out."""
        self._kubelet, self._driver, self._on_sync, self._task_ids = kubelet, driver, on_sync, task_ids
        self._sandbox_dir = sandbox_dir
        self._complained: set[str] = set()
        self.pods: MappingProxyType[str, PodMeta] = MappingProxyType({})
        self.synced = False
        self._asked = self._heard = 0
        """Rounds that began; the last of them that changed `pods`."""
        self.answered = False
        """Whether the kubelet was heard at all, be it with an empty list."""
        self.error = "the kubelet was not asked yet"
        """Why the last round changed nothing; empty after a good one."""

    async def sync(self) -> None:
        """One round; raises KubeletError after noting it, so that the periodic task counts the failure. Of rounds at
        once the answer to the one that began last stays."""
        self._asked += 1
        number = self._asked
        try:
            pods = await self._kubelet.pods()
        except KubeletError as error:
            self.error = str(error)
            raise
        self.answered = True
        if not pods:
            self.error = "the kubelet reports no pods; keeping the ones known"
            return
        if number > self._heard:
            self._heard = number
            self.replace(pods)

    def replace(self, pods: Iterable[Pod]) -> None:
        """Take over this list."""
        driver = self._driver()
        found: dict[str, PodMeta] = {}
        for pod in pods:
            uid = pod.metadata.uid
            try:
                if not uid:
                    raise NamingError("metadata.uid is empty")
                meta = self._with_sandbox(describe(pod, driver), driver)
                found[uid] = meta if self._task_ids is None else replace(meta, task_ids=self._task_ids(meta, driver))
                self._complained.discard(uid)
            except (NamingError, ValueError) as error:
                if uid not in self._complained:
                    self._complained.add(uid)
                    log.warning("pod left out", pod=pod.metadata.key, uid=uid, error=str(error))
        self._complained.intersection_update(pod.metadata.uid for pod in pods)
        self.pods, self.synced, self.error = MappingProxyType(found), True, ""
        self._on_sync()

    def _with_sandbox(self, meta: PodMeta, driver: CgroupDriver) -> PodMeta:
        """Looked for once for the same containers: a new sandbox gives all of them new ids."""
        if self._sandbox_dir is None:
            return meta
        known = self.pods.get(meta.uid)
        same = known is not None and known.sandbox_dir and _ids(known) == _ids(meta)
        found = known.sandbox_dir if known is not None and same else self._sandbox_dir(meta, driver)
        return replace(meta, sandbox_dir=found) if found else meta


def _ids(meta: PodMeta) -> tuple[str, ...]:
    return tuple(container.id for container in meta.containers)
