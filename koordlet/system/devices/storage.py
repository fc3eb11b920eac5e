"""Local disks, partitions, LVM and mount points from sysfs and mountinfo, without launching a command (spec 02 §5.9).

A partition's disk is its parent in sysfs, which is right for NVMe and for partition numbers above 15 too. LVM is seen
through device-mapper: `dm/uuid` begins with `LVM-` and has two ids of 32 characters, `dm/name` is `<vg>-<lv>` with
every `-` of a name doubled; a longer uuid marks a volume that LVM hides. A volume group's disk is the one below all its
volumes: a group without an active volume is not seen, and a group on several disks has none. Devices without a medium
(unbound loops, empty drives) are left out. Source: Documentation/ABI/stable/sysfs-block, lsblk(8), lvm(8).
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from koordlet.system.errors import MalformedFile, UnreadableFile
from koordlet.system.kernel import read_text
from koordlet.system.mounts import parse_mountinfo
from koordlet.system.roots import Roots

_LVM = "LVM-"
_LVM_UUID_LENGTH = 68
_NO_DISKS = ("loop", "ram", "sr", "fd", "md", "dm-", "nbd")
"""Prefixes of whole devices whose type is not `disk` in lsblk."""


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Names are paths below /dev, numbers `major:minor`."""

    disk_numbers: Mapping[str, str]
    """disk -> number"""
    partition_disk: Mapping[str, str]
    """partition -> disk it is on"""
    vg_disk: Mapping[str, str]
    """volume group -> the one disk below it"""
    lv_vg: Mapping[str, str]
    """/dev/mapper/... of a logical volume -> its group"""
    mount_source: Mapping[str, str]
    """mount point -> source; the mount on top where several share a point"""

    def disk_of(self, device: str) -> str | None:
        """The disk below a disk, partition or logical volume; None when there is none or more than one."""
        if device in self.disk_numbers:
            return device
        return self.partition_disk.get(device) or self.vg_disk.get(self.lv_vg.get(device, ""))


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """One directory of /sys/class/block."""

    name: str
    number: str
    sectors: int
    parent: str
    """the whole disk of a partition, else empty"""
    slaves: tuple[str, ...] = ()
    dm_name: str = ""
    dm_uuid: str = ""

    @property
    def path(self) -> str:
        """sysfs writes a slash within a name as `!`."""
        return f"/dev/mapper/{self.dm_name}" if self.dm_name else f"/dev/{self.name.replace('!', '/')}"


def read_local_storage(roots: Roots) -> LocalStorage:
    """The storage of the machine, with the mounts of init. Raises MalformedFile, UnreadableFile."""
    base = roots.sys / "class/block"
    try:
        names = sorted(path.name for path in base.iterdir())
    except OSError as error:
        raise UnreadableFile(base, error) from error
    devices = [device for name in names if (device := _read_device(base / name)) is not None]
    return local_storage(devices, _mounts(roots))


def local_storage(devices: Iterable[BlockDevice], mounts: Iterable[tuple[str, str, str]]) -> LocalStorage:
    """Pure. `mounts` are (point, source, device number) in the order of mounting."""
    known = {device.name: device for device in devices if device.sectors > 0}
    volumes = [device for device in known.values() if _is_visible_volume(device)]
    below: dict[str, set[str]] = {}
    for device in volumes:
        below.setdefault(_group_of(device.dm_name), set()).update(_physical(device, known))
    by_number = {device.number: device.path for device in known.values()}
    return LocalStorage(
        disk_numbers={d.path: d.number for d in known.values() if not d.parent and not d.name.startswith(_NO_DISKS)},
        partition_disk={d.path: known[d.parent].path for d in known.values() if d.parent in known},
        vg_disk={
            group: _whole(known[next(iter(parts))], known).path for group, parts in below.items() if len(parts) == 1
        },
        lv_vg={device.path: _group_of(device.dm_name) for device in volumes},
        mount_source={
            point: by_number.get(number, source) if source == "/dev/root" else source
            for point, source, number in mounts
        },
    )


def _is_visible_volume(device: BlockDevice) -> bool:
    return device.dm_uuid.startswith(_LVM) and len(device.dm_uuid) == _LVM_UUID_LENGTH


def _group_of(dm_name: str) -> str:
    """The part before the first `-` that is not doubled."""
    return dm_name.replace("--", "\0").partition("-")[0].replace("\0", "-")


def _physical(device: BlockDevice, known: Mapping[str, BlockDevice]) -> set[str]:
    """Names of the devices at the bottom; a volume may lie on others."""
    names = set()
    for name in device.slaves:
        if name in known:
            names |= _physical(known[name], known) if known[name].dm_uuid.startswith(_LVM) else {name}
    return names


def _whole(device: BlockDevice, known: Mapping[str, BlockDevice]) -> BlockDevice:
    return known.get(device.parent, device)


def _read_device(path: Path) -> BlockDevice | None:
    """None for a device that was removed meanwhile."""
    number, size = read_text(path / "dev"), read_text(path / "size")
    if number is None or size is None:
        return None
    if not size.strip().isdecimal():
        raise MalformedFile(path / "size", size, "expected a number of sectors")
    is_partition = (path / "partition").exists()
    try:
        slaves = tuple(sorted(os.listdir(path / "slaves")))  # noqa: PTH208 - names only
    except OSError:  # partitions have none
        slaves = ()
    return BlockDevice(
        name=path.name,
        number=number.strip(),
        sectors=int(size),
        parent=path.resolve().parent.name if is_partition else "",
        slaves=slaves,
        dm_name=(read_text(path / "dm/name") or "").strip(),
        dm_uuid=(read_text(path / "dm/uuid") or "").strip(),
    )


def _mountinfo(roots: Roots) -> tuple[Path, ...]:
    """Of init's mount namespace, which is the host's, or of this process where init's cannot be read."""
    return tuple(roots.proc / pid / "mountinfo" for pid in ("1", "self"))


def _mounts(roots: Roots) -> list[tuple[str, str, str]]:
    for path in _mountinfo(roots):
        text = read_text(path)
        if text is not None:
            return [(str(mount.point), mount.source, mount.device) for mount in parse_mountinfo(text, str(path))]
    return []


class StorageWatch:
    """Detects changes of devices or mounts without reading the long list of mounts: an open mountinfo is ready for
    poll(2) with POLLPRI after every change (proc_pid_mounts(5)). Holds one descriptor until closed."""

    def __init__(self, roots: Roots) -> None:
        self._partitions = roots.proc / "partitions"
        self._last: str | None = None
        self._poll = select.poll()
        self._fd = -1
        for path in _mountinfo(roots):
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # changes are then found by the regular rounds of the reader
                continue
            self._poll.register(self._fd, select.POLLPRI)
            break

    def changed(self) -> bool:
        """Whether something changed since the last call; the result of the first call is arbitrary."""
        last = self._last
        self._last = read_text(self._partitions)
        mounts_changed = bool(self._poll.poll(0))
        return mounts_changed or last != self._last

    def close(self) -> None:
        if self._fd >= 0:
            self._poll.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1
