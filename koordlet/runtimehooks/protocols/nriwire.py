"""NRI's messages: what a container was asked to get, and answers as adjustments and updates. Pure.

An update starts from the resources that the runtime was asked for and names its container: it takes the place of the
request as a whole (spec 03 §8.14).
"""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.nri import api_pb2 as pb
from koordlet.runtimehooks.stages import Answer, Native
from koordlet.system.cgroup.codecs import CFS_PERIOD_US, UNLIMITED


def variables(env: Iterable[str]) -> dict[str, str]:
    """`NAME=value` words; those without a value are left out."""
    pairs = (word.partition("=") for word in env)
    return {name: value for name, _, value in pairs if name and value}


def native_of(resources: pb.LinuxResources) -> Native:
    """What the runtime was asked for; a negative memory limit is none."""
    cpu, memory = resources.cpu, resources.memory
    limit = memory.limit.value if memory.HasField("limit") else 0
    return Native(
        cpu_shares=cpu.shares.value or None,
        cfs_quota=cpu.quota.value or None,
        cpuset=cpu.cpus or None,
        memory_limit=(UNLIMITED if limit < 0 else limit) or None,
    )


def adjustment(answer: Answer, asked: pb.LinuxResources) -> pb.ContainerAdjustment:
    """What to change about a container that is being created; only what hooks want is in it."""
    adjust = pb.ContainerAdjustment(
        env=[pb.KeyValue(key=name, value=value) for name, value in sorted(answer.env.items())],
        mounts=[
            pb.Mount(source=one.source, destination=one.destination, type=one.type, options=one.options)
            for one in answer.mounts
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
    if _fill(resources, answer, asked):
        adjust.linux.resources.CopyFrom(resources)
    return adjust


def updated(container: str, answer: Answer, asked: pb.LinuxResources) -> pb.ContainerUpdate | None:
    """The update with the hooks' values in it; None where they want nothing."""
    resources = pb.LinuxResources()
    resources.CopyFrom(asked)
    if not _fill(resources, answer, asked):
        return None
    return pb.ContainerUpdate(container_id=container, linux=pb.LinuxContainerUpdate(resources=resources))


def _fill(resources: pb.LinuxResources, answer: Answer, asked: pb.LinuxResources) -> bool:
    """Whether anything was filled in. An empty CPU set can't be said here: there it is "not set"."""
    before = resources.SerializeToString(deterministic=True)
    if answer.cpu_shares is not None:
        resources.cpu.shares.value = answer.cpu_shares
    if answer.cfs_quota is not None:
        resources.cpu.quota.value = answer.cfs_quota
        if answer.cfs_quota > 0 and asked.cpu.period.value:  # a quota is a share of this period
            resources.cpu.period.value = CFS_PERIOD_US
    if answer.cpuset:
        resources.cpu.cpus = answer.cpuset
    if answer.memory_limit is not None:
        resources.memory.limit.value = answer.memory_limit
    if answer.resctrl is not None and answer.resctrl.closid:
        resources.rdt_class.value = answer.resctrl.closid
    return resources.SerializeToString(deterministic=True) != before
