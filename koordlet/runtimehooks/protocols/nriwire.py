"""NRI messages: requested resources, and answers as adjustments and updates. Pure.

An update contains all resources of the runtime's request and the id of the container, because it replaces the request
as a whole (spec 03 §8.14).
"""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.nri import api_pb2 as pb
from koordlet.runtimehooks.stages import HookAnswer, RequestedResources
from koordlet.system.cgroup.codecs import CFS_PERIOD_US, UNLIMITED


def variables(env: Iterable[str]) -> dict[str, str]:
    """`NAME=value` words; those without a value are left out."""
    pairs = (word.partition("=") for word in env)
    return {name: value for name, _, value in pairs if name and value}


def requested_resources(resources: pb.LinuxResources) -> RequestedResources:
    """The resources of a request; a negative memory limit means unlimited."""
    cpu = resources.cpu
    memory = resources.memory
    limit = memory.limit.value if memory.HasField("limit") else 0
    return RequestedResources(
        cpu_shares=cpu.shares.value or None,
        cfs_quota=cpu.quota.value or None,
        cpuset=cpu.cpus or None,
        memory_limit=(UNLIMITED if limit < 0 else limit) or None,
    )


def adjustment(answer: HookAnswer, requested: pb.LinuxResources) -> pb.ContainerAdjustment:
    """The changes of a container that is being created; it has only the fields of the answer."""
    adjust = pb.ContainerAdjustment(
        env=[pb.KeyValue(key=name, value=value) for name, value in sorted(answer.env.items())],
        mounts=[
            pb.Mount(source=mount.source, destination=mount.destination, type=mount.type, options=mount.options)
            for mount in answer.mounts
        ],
    )
    for device in answer.devices:
        adjust.linux.devices.add(
            path=device.path,
            type=device.type,
            major=device.major,
            minor=device.minor,
            file_mode=pb.OptionalFileMode(value=device.mode),
        )
    resources = pb.LinuxResources()
    if _fill(resources, answer, requested):
        adjust.linux.resources.CopyFrom(resources)
    return adjust


def updated(container: str, answer: HookAnswer, requested: pb.LinuxResources) -> pb.ContainerUpdate | None:
    """The request with the values of the answer; None without values."""
    resources = pb.LinuxResources()
    resources.CopyFrom(requested)
    if not _fill(resources, answer, requested):
        return None
    return pb.ContainerUpdate(container_id=container, linux=pb.LinuxContainerUpdate(resources=resources))


def _fill(resources: pb.LinuxResources, answer: HookAnswer, requested: pb.LinuxResources) -> bool:
    """Whether anything changed. NRI cannot express an empty CPU set: there it means "not set"."""
    before = resources.SerializeToString(deterministic=True)
    if answer.cpu_shares is not None:
        resources.cpu.shares.value = answer.cpu_shares
    if answer.cfs_quota is not None:
        resources.cpu.quota.value = answer.cfs_quota
        if answer.cfs_quota > 0 and requested.cpu.period.value:  # the quota is for this period
            resources.cpu.period.value = CFS_PERIOD_US
    if answer.cpuset:
        resources.cpu.cpus = answer.cpuset
    if answer.memory_limit is not None:
        resources.memory.limit.value = answer.memory_limit
    if answer.resctrl is not None and answer.resctrl.closid:
        resources.rdt_class.value = answer.resctrl.closid
    return resources.SerializeToString(deterministic=True) != before
