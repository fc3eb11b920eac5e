"""What Koordinator's koordlet left on a node that is taken over without a reboot (spec 03 §3.0).

A setting that this koordlet never wrote has no value in the ledger, so switching a class off would leave what the
predecessor wrote. `leftovers` finds such settings in the kubelet's tree and names the value that each has on a node
without a predecessor. Entered into the ledger, they are treated like own settings: strategies that want them keep them,
the others are restored. The kubelet and the runtimes write none of these files, but for CPU sets with the static CPU
manager policy, which the kubelet then sets again, and `memory.min` and `memory.high` with its gate MemoryQoS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from koordlet.resourceexecutor.blockio import THROTTLES, BlockStore
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.codecs import SHARES_MIN, UNLIMITED
from koordlet.system.cgroup.naming import (
    CgroupDriver,
    KubeQOS,
    NamingError,
    is_container_name,
    kubepods_dir,
    parse_pod_name,
    qos_dir,
)
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.validators import INT64_MAX
from koordlet.system.errors import KernelFileError, ResourceUnsupported

MARK = "koordlet/prediction-checkpoints"
"""Below the host's /var/run, which is empty after boot: the folder that Koordinator's chart mounts for its koordlet."""
NEUTRAL: dict[str, Value] = {
    "cpu.bvt_warp_ns": 0,
    "cpu.cfs_burst_us": 0,
    "memory.min": 0,
    "memory.low": 0,
    "memory.high": INT64_MAX,
    "memory.wmark_ratio": 0,
    "memory.wmark_scale_factor": 50,
    "memory.wmark_min_adj": 0,
    "memory.priority": 0,
    "memory.use_priority_oom": 0,
}
"""Of every directory. `memory.oom.group` is missing: the kubelet sets it for containers."""
IDLE, WEIGHT, QUOTA, CPUS = "cpu.idle", "cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus"


@dataclass(frozen=True, slots=True)
class _Directory:
    path: str
    qos: KubeQOS
    container: bool


def predecessor_ran(var_run: Path) -> bool:
    """Whether Koordinator's koordlet ran on this node since it booted."""
    return (var_run / MARK).is_dir()


def leftovers(files: KernelFiles, groups: CgroupFS, driver: CgroupDriver) -> dict[Setting, Value]:
    """Setting -> its value without a predecessor, where it has another one now."""
    settings: dict[Setting, Value] = {}
    blocks = BlockStore(groups)
    everything = _read(files, Setting(CPUS, kubepods_dir(driver)))
    for directory in _directories(groups, driver):
        expected = dict(NEUTRAL)
        if directory.qos is KubeQOS.BESTEFFORT:
            expected[IDLE] = 0
            if everything is not None:
                expected[CPUS] = everything
            if directory.path == qos_dir(driver, KubeQOS.BESTEFFORT):
                expected[QUOTA] = UNLIMITED
        for resource, value in expected.items():
            setting = Setting(resource, directory.path)
            current = _read(files, setting)
            if current is None or current == value:
                continue
            if resource == CPUS and current == "":
                continue  # cgroup v2: the parent's
            settings[setting] = value
            if resource == IDLE:  # the kernel forgets the kubelet's weight meanwhile
                settings[Setting(WEIGHT, directory.path)] = SHARES_MIN
        if not directory.container:
            settings.update(dict.fromkeys(_throttled(blocks, directory.path), "0"))
    return settings


def _directories(groups: CgroupFS, driver: CgroupDriver) -> Iterator[_Directory]:
    """Of QoS classes, pods and containers; not what containers make in their own groups."""
    root = groups.hierarchy("cpu")
    for qos in KubeQOS:
        top = qos_dir(driver, qos)
        yield _Directory(top, qos, container=False)
        for name in tree.children(root, top):
            try:
                parse_pod_name(driver, name)
            except NamingError:
                continue
            pod = f"{top}/{name}"
            yield _Directory(pod, qos, container=False)
            for below in tree.children(root, pod):
                if is_container_name(driver, below):
                    yield _Directory(f"{pod}/{below}", qos, container=True)


def _read(files: KernelFiles, setting: Setting) -> Value | None:
    """None for a file that this kernel lacks or that cannot be read."""
    try:
        return files.read(setting)
    except (ResourceUnsupported, KernelFileError):
        return None


def _throttled(blocks: BlockStore, directory: str) -> Iterator[Setting]:
    """Limits of block devices that are set."""
    for resource in THROTTLES:
        for device in blocks.devices(resource, directory):
            setting = Setting(resource, directory, device)
            if blocks.read(setting) != "0":
                yield setting
