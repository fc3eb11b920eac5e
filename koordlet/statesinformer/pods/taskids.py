"""The threads of a pod's containers, its sandbox included: `--enable-pod-taskids` (spec 02 §3.4).

For what works on tasks and not on cgroups (core scheduling, resctrl groups). Read with every answer of the kubelet, so
they are as old as that; a container that has ended is left out.
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

TERMINATED = ("Succeeded", "Failed")


def task_ids(
    meta: PodMeta,
    driver: CgroupDriver,
    children: Callable[[str], Sequence[str]],
    tasks: Callable[[str], tuple[int, ...] | None],
) -> Mapping[str, tuple[int, ...]]:
    """Thread ids by full container id (`<runtime>://<hash>`).

    `children` names the directories in a pod's cpuset cgroup, `tasks` reads those of a container's directory. A sandbox
    that cannot be told from other directories is left out, and so is a container whose file is gone or cannot be read.
    """
    pod = meta.pod
    if pod is None or pod.status.phase in TERMINATED:
        return {}
    declared = {one.name for one in (*pod.spec.containers, *pod.spec.init_containers)}
    places = {one.id: one.cgroup_dir for one in meta.containers if one.name in declared}
    sandbox = sandbox_of(meta, driver, children)
    if sandbox is not None:
        places[str(sandbox[0])] = sandbox[1]
    found = {}
    for key, place in places.items():
        try:
            ids = tasks(place)
        except KernelFileError as error:
            log.debug("tasks left out", container=key, error=str(error))
        else:
            if ids is not None:
                found[key] = ids
    return found


def sandbox_of(
    meta: PodMeta, driver: CgroupDriver, children: Callable[[str], Sequence[str]]
) -> tuple[ContainerId, str] | None:
    """Id and directory of the pod's pause container; None while it can't be told from other directories."""
    if meta.pod is None:
        return None
    try:
        names = children(meta.cgroup_dir)
        sandbox = sandbox_id(driver, names, _ids(meta.pod))
    except NamingError as error:
        log.debug("sandbox left out", pod=meta.pod.metadata.key, error=str(error))
        return None
    if sandbox is None:
        return None
    name = next(one for one in names if _hash(driver, one) == sandbox.hash)  # cri-o's has no `.scope`
    return sandbox, f"{meta.cgroup_dir}/{name}"


def _hash(driver: CgroupDriver, name: str) -> str:
    return parse_container_name(driver, name).hash if is_container_name(driver, name) else ""


def _ids(pod: Pod) -> list[str]:
    """Ids of all containers that ever had one."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return [status.container_id for status in statuses if status.container_id]
