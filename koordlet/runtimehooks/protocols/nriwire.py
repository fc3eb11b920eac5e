"""NRI messages: answers as adjustments and updates. Pure.

An update contains all resources of the runtime's request and the id of the container, because it replaces the request
as a whole (spec 03 §8.14).
"""

from __future__ import annotations

from koordlet.api.nri import api_pb2 as pb
from koordlet.runtimehooks.stages import HookAnswer
from koordlet.system.cgroup.codecs import CFS_PERIOD_US


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
    if answer.closid:
        resources.rdt_class.value = answer.closid
    return resources.SerializeToString(deterministic=True) != before
