"""Directories of containers, as a kubelet with this cgroup driver names them."""

from __future__ import annotations

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, container_name, pod_dir


def container_dir(driver: CgroupDriver, qos: KubeQOS, uid: str, container_id: str) -> str:
    """Relative to the hierarchy; `container_id` is `runtime://hash`."""
    return f"{pod_dir(driver, qos, uid)}/{container_name(driver, container_id)}"
