"""Builds the CRI requests for a pod and its containers, and reads containerd's responses; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.standalone.containerd.config import may_protect
from control.standalone.containerd.hostimage import HOST_IMAGE, HostMount
from control.standalone.containerd.slices import expand
from control.standalone.kubelet.cgroups.values import PERIOD_US, CgroupValues
from control.standalone.kubelet.runtimes.runtime import (
    UNRESTRICTED,
    ContainerConfig,
    ContainerSecurity,
    PathMount,
    SandboxConfig,
)
from koordlet.api.cri import api_pb2 as cri
from koordlet.api.hooks.api_pb2 import LinuxContainerResources

POD_NAME, POD_NAMESPACE, POD_UID = (f"io.kubernetes.pod.{word}" for word in ("name", "namespace", "uid"))
CONTAINER_NAME = "io.kubernetes.container.name"
RESTARTS = "io.kubernetes.container.restartCount"
_PROPAGATION = {
    "": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}
_SECCOMP = {"RuntimeDefault": cri.SecurityProfile.RuntimeDefault, "Unconfined": cri.SecurityProfile.Unconfined}


@dataclass(frozen=True, slots=True)
class SwapAccounting:
    """Whether the kernel accounts swap: by v1's memory.memsw files, or on v2."""

    version: int
    accounted: bool


def namespaces(target: str = "", security: ContainerSecurity = UNRESTRICTED) -> Any:
    """No CNI: every pod uses the host's network, as with the process runtime. Each container has a PID namespace, or
    that of the container `target`, or the host's."""
    pid = cri.TARGET if target else cri.NODE if security.host_pid else cri.CONTAINER
    ipc = cri.NODE if security.host_ipc else cri.POD
    return cri.NamespaceOption(network=cri.NODE, pid=pid, ipc=ipc, target_id=target)


def sandbox(config: SandboxConfig, attempt: int) -> Any:
    """PodSandboxConfig. The hostname is the host's, because the pod uses the host's network."""
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=config.name, uid=config.pod_uid, namespace=config.namespace, attempt=attempt
        ),
        log_directory=str(config.log_dir),
        labels={
            **config.labels,
            POD_NAME: config.name,
            POD_NAMESPACE: config.namespace,
            POD_UID: config.pod_uid,
        },
        annotations=config.annotations,
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=parent(config.cgroup),
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=namespaces(security=config.security), privileged=config.security.privileged
            ),
        ),
    )


def known_sandbox(item: Any, cgroup: str, log_dir: Path) -> Any:
    """PodSandboxConfig of a sandbox that the runtime lists, for creating more containers in it."""
    return cri.PodSandboxConfig(
        metadata=item.metadata,
        log_directory=str(log_dir),
        labels=item.labels,
        annotations=item.annotations,
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=parent(cgroup),
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=namespaces()),
        ),
    )


def container(config: ContainerConfig, pod: Any, swap: SwapAccounting, mounts: Sequence[HostMount]) -> Any:
    """ContainerConfig in the sandbox whose PodSandboxConfig is `pod`. The host's image gets `mounts`."""
    user = config.user if config.user is not None or config.group is None else 0
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=config.name, attempt=config.attempt),
        image=cri.ImageSpec(image=config.image),
        command=config.argv if config.has_program else (),
        args=() if config.has_program else config.argv,
        working_dir=config.cwd or "",
        envs=[cri.KeyValue(key=key, value=value) for key, value in config.env.items()],
        mounts=[
            *(
                cri.Mount(container_path=mount.path, host_path=mount.path, readonly=True)
                for mount in (mounts if config.image == HOST_IMAGE else ())
            ),
            *(_mount(mount) for mount in config.mounts),
        ],
        labels={
            CONTAINER_NAME: config.name,
            POD_NAME: pod.metadata.name,
            POD_NAMESPACE: pod.metadata.namespace,
            POD_UID: config.pod_uid,
        },
        annotations={RESTARTS: str(config.attempt)},
        log_path=str(config.log_path.relative_to(pod.log_directory)),
        stdin=config.stdin,
        stdin_once=config.stdin_once,
        tty=config.tty,
        linux=cri.LinuxContainerConfig(
            resources=resources(config.values, config.oom_score_adj, swap),
            security_context=_security(
                config,
                run_as_user=cri.Int64Value(value=user) if user is not None else None,
                run_as_group=cri.Int64Value(value=config.group) if config.group is not None else None,
            ),
        ),
    )


def _mount(mount: PathMount) -> Any:
    return cri.Mount(
        container_path=mount.path,
        host_path=mount.source,
        readonly=mount.read_only,
        propagation=_PROPAGATION[mount.propagation],
    )


def _security(config: ContainerConfig, **user: Any) -> Any:
    security = config.security
    profile = _SECCOMP.get(security.seccomp)
    # runc cannot start a container with a capability that it lacks; SYS_RESOURCE is the one that containers often lack.
    add = [name for name in security.add if name != "SYS_RESOURCE" or may_protect()]
    return cri.LinuxContainerSecurityContext(
        namespace_options=namespaces(config.target, security),
        privileged=security.privileged,
        capabilities=cri.Capability(add_capabilities=add, drop_capabilities=security.drop),
        readonly_rootfs=security.read_only_root,
        no_new_privs=security.no_new_privileges,
        seccomp=cri.SecurityProfile(profile_type=profile) if profile is not None else None,
        **user,
    )


def resources(values: CgroupValues, oom_score_adj: int, swap: SwapAccounting) -> Any:
    """LinuxContainerResources; 0 means the kernel's default."""
    unified: dict[str, str] = {}
    if swap.version == 2 and values.oom_group:
        unified["memory.oom.group"] = "1"
    if swap.version == 2 and values.no_swap and swap.accounted:
        unified["memory.swap.max"] = "0"
    no_swap = values.no_swap and swap.accounted and swap.version == 1
    return LinuxContainerResources(
        cpu_period=PERIOD_US,
        cpu_quota=values.quota or 0,
        cpu_shares=values.shares or 0,
        memory_limit_in_bytes=values.memory or 0,
        memory_swap_limit_in_bytes=(values.memory or 0) if no_swap else 0,
        oom_score_adj=oom_score_adj,
        unified=unified,
    )


def parent(cgroup: str) -> str:
    """The cgroup parent of a container's directory, as CRI has it: absolute."""
    return "/" + cgroup.strip("/").rpartition("/")[0]


def cgroup_of(info: Mapping[str, str]) -> str:
    """The cgroup in a verbose status, relative to the hierarchies' roots; "" when there is none."""
    try:
        path = json.loads(info.get("info", "{}"))["runtimeSpec"]["linux"]["cgroupsPath"]
    except (ValueError, KeyError, TypeError):
        return ""
    return expand(str(path)).strip("/")
