"""Thread ids of a pod's containers, including its sandbox: `--enable-pod-taskids` (spec 02 §3.4).

For settings that apply to tasks instead of cgroups (core scheduling, resctrl groups). They are read with each answer of
the kubelet and are as old as that. Terminated containers are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from koordlet.api.core import Pod
from koordlet.app.logging import get_logger
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.cgroup.naming import (
    CgroupDriver,
    ContainerId,
    NamingError,
    is_container_name,
    parse_container_name,
    sandbox_id,
)
from koordlet.system.errors import KernelFileError

log = get_logger(__name__)

TERMINATED_PHASES = ("Succeeded", "Failed")


def task_ids(
    meta: PodMeta,
    driver: CgroupDriver,
    children: Callable[[str], Sequence[str]],
    tasks: Callable[[str], tuple[int, ...] | None],
) -> Mapping[str, tuple[int, ...]]:
    """Thread ids by full container id (`<runtime>://<hash>`).

    `children` lists the subdirectories of a pod's cpuset cgroup, `tasks` reads the thread ids of a container's. Left
    out: a sandbox that cannot be identified, and a container whose file was removed or cannot be read.
    """
    pod = meta.pod
    if pod is None or pod.status.phase in TERMINATED_PHASES:
        return {}
    declared = {container.name for container in (*pod.spec.containers, *pod.spec.init_containers)}
    directories = {container.id: container.cgroup_dir for container in meta.containers if container.name in declared}
    sandbox = sandbox_of(meta, driver, children)
    if sandbox is not None:
        directories[str(sandbox[0])] = sandbox[1]
    threads = {}
    for container_id, directory in directories.items():
        try:
            ids = tasks(directory)
        except KernelFileError as error:
            log.debug("Tasks left out", container=container_id, error=str(error))
        else:
            if ids is not None:
                threads[container_id] = ids
    return threads


def sandbox_of(
    meta: PodMeta, driver: CgroupDriver, children: Callable[[str], Sequence[str]]
) -> tuple[ContainerId, str] | None:
    """Id and directory of the pod's pause container; None if it cannot be identified among the directories."""
    if meta.pod is None:
        return None
    try:
        names = children(meta.cgroup_dir)
        sandbox = sandbox_id(driver, names, _ids(meta.pod))
    except NamingError as error:
        log.debug("Sandbox left out", pod=meta.pod.metadata.key, error=str(error))
        return None
    if sandbox is None:
        return None
    name = next(name for name in names if _hash(driver, name) == sandbox.hash)  # cri-o's has no `.scope`
    return sandbox, f"{meta.cgroup_dir}/{name}"


def _hash(driver: CgroupDriver, name: str) -> str:
    return parse_container_name(driver, name).hash if is_container_name(driver, name) else ""


def _ids(pod: Pod) -> list[str]:
    """Ids of all containers that have one."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return [status.container_id for status in statuses if status.container_id]
