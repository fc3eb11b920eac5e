"""What a pod's securityContext and namespaces require of the runtime, and whether that reaches the node; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.standalone.kubelet.pods.environ import EnvError
from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod
from control.standalone.kubelet.runtimes.runtime import ContainerSecurity

PROFILES = ("RuntimeDefault", "Unconfined")


def container_security(pod: ParsedPod, container: ContainerSpec) -> ContainerSecurity:
    """Raises EnvError for settings that contradict each other or are not supported."""
    context = container.security
    privileged = context.get("privileged") is True
    if context.get("runAsNonRoot") is True and container.user == 0:
        raise EnvError("container's runAsUser breaks non-root policy")
    if privileged and context.get("allowPrivilegeEscalation") is False:
        raise EnvError("cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    profile = str(_mapping(context.get("seccompProfile")).get("type") or "")
    if profile and profile not in PROFILES:
        raise EnvError(f"seccompProfile.type: unsupported value {profile!r}")
    capabilities = _mapping(context.get("capabilities"))
    return ContainerSecurity(
        privileged=privileged,
        add=_names(capabilities.get("add")),
        drop=_names(capabilities.get("drop")),
        read_only_root=context.get("readOnlyRootFilesystem") is True,
        no_new_privileges=context.get("allowPrivilegeEscalation") is False,
        seccomp=profile,
        host_pid=pod.host_pid,
        host_ipc=pod.host_ipc,
    )


def sandbox_security(pod: ParsedPod) -> ContainerSecurity:
    """The namespaces of the pod; privileged if one of its containers is."""
    privileged = any(container.security.get("privileged") is True for container in pod.every_container())
    return ContainerSecurity(privileged=privileged, host_pid=pod.host_pid, host_ipc=pod.host_ipc)


def reaches_node(pod: ParsedPod) -> str | None:
    """The first field with which this pod could change the node or read other pods; None when it has none."""
    if pod.host_pid:
        return "hostPID"
    if pod.host_ipc:
        return "hostIPC"
    for name, volume in pod.volumes.items():
        if volume.get("hostPath") is not None:
            return f"hostPath of volume {name}"
    for container in pod.every_container():
        if container.security.get("privileged") is True:
            return f"privileged of container {container.name}"
        if _names(_mapping(container.security.get("capabilities")).get("add")):
            return f"capabilities.add of container {container.name}"
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: object) -> tuple[str, ...]:
    """Capabilities without the prefix CAP_, as CRI has them."""
    return tuple(str(name).removeprefix("CAP_") for name in value) if isinstance(value, list) else ()
