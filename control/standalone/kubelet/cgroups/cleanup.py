"""Undoing everything that a kubelet made on this machine: processes, cgroups, state; nothing of others."""

from __future__ import annotations

from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.pods.spec import MalformedPod, parse_pod
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.runtimes.runtime import Runtime
from koordlet.app.logging import get_logger

log = get_logger(__name__)


async def remove_all(runtime: Runtime, cgroups: PodCgroups, store: PodStore) -> list[str]:
    """End and remove what state files and runtime know of; the cgroups that stay (in use by others)."""
    await runtime.load()
    for info in runtime.containers():
        await runtime.remove(info.id)
    left: list[str] = []
    for uid, state in store.load():
        try:
            path = cgroups.pod_dir(parse_pod(state.raw))
        except MalformedPod:  # it was refused for this: nothing was ever made for it
            path = ""
        if path and cgroups.tree.exists(path) and not await cgroups.remove_pod(path):
            left.append(path)
            continue
        store.forget(uid)
        log.info("Removed pod", uid=uid)
    return left + cgroups.teardown()
