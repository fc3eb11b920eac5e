"""CRI requests of small pods for tests: host network, busybox, given cgroup parent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from koordlet.api.cri import api_pb2 as cri
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from tests.runtimes.daemons import BUSYBOX

FOREVER = ("/bin/sleep", "1000000")


def host_network() -> Any:
    """No CNI: the pod uses the host's network, and a PID namespace per container."""
    return cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER, ipc=cri.POD)


def sandbox_config(
    cgroup_parent: str,
    *,
    name: str = "pod",
    namespace: str = "default",
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    attempt: int = 0,
) -> Any:
    """PodSandboxConfig as a kubelet writes it, including the io.kubernetes labels."""
    uid = uid or str(uuid.uuid4())
    own = {"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.uid": uid}
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace=namespace, attempt=attempt),
        labels={**(labels or {}), **own},
        annotations=annotations,
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=host_network()),
        ),
    )


def container_config(
    *command: str,
    name: str = "main",
    image: str = BUSYBOX,
    resources: Any = None,
    envs: Sequence[tuple[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
    attempt: int = 0,
) -> Any:
    """ContainerConfig; sleeps without a command. `resources` is a LinuxContainerResources (default: 2 shares)."""
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=image),
        command=command or FOREVER,
        envs=[cri.KeyValue(key=key, value=value) for key, value in envs],
        labels={"io.kubernetes.container.name": name},
        annotations=annotations,
        linux=cri.LinuxContainerConfig(
            resources=resources if resources is not None else LinuxContainerResources(cpu_period=100_000, cpu_shares=2),
            security_context=cri.LinuxContainerSecurityContext(namespace_options=host_network()),
        ),
    )
