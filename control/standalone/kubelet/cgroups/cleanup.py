"""Removes everything that a kubelet made on this machine (processes, cgroups, state files), and nothing else."""

from __future__ import annotations

from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.pods.spec import MalformedPod, parse_pod
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.runtimes.runtime import ContainerRuntime
from koordlet.app.logging import get_logger

log = get_logger(__name__)


async def remove_all(runtime: ContainerRuntime, cgroups: PodCgroups, store: PodStore) -> list[str]:
    """Remove all containers and pods of the runtime and the state files. Returns the cgroups that are still in use."""
    await runtime.load()
    for info in runtime.containers():
        await runtime.remove(info.id)
    remaining: list[str] = []
    for uid, state in store.load():
        try:
            path = cgroups.pod_dir(parse_pod(state.raw))
        except MalformedPod:  # it was rejected for this reason, so that no cgroup exists
            path = ""
        if path and cgroups.tree.exists(path) and not await cgroups.remove_pod(path):
            remaining.append(path)
            continue
        store.forget(uid)
        log.info("Removed pod", uid=uid)
    return remaining + cgroups.teardown()
