"""Disks, partitions, volume groups and mounts, from sysfs trees and from devices of the kernel."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koordlet.system.devices.storage import LocalStorage, StorageWatch, read_local_storage
from koordlet.system.errors import MalformedFile, UnreadableFile
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under

VG, OTHER = "A" * 32, "B" * 32


class Sysfs:
    """/sys/class/block as links into a device tree, as the kernel has it."""

    def __init__(self, base: Path) -> None:
        self.roots = roots_under(base)
        self.links = self.roots.sys / "class/block"
        self.links.mkdir(parents=True)
        self.mounts: list[str] = []

    def disk(self, name: str, number: str, *, sectors: int = 2048, parent: str = "", **files: str) -> Path:
        path = self.roots.sys / "devices/virtual" / parent / name
        path.mkdir(parents=True)
        for file, text in {"dev": number, "size": str(sectors), **files}.items():
            (path / file.replace("__", "/")).parent.mkdir(exist_ok=True)
            (path / file.replace("__", "/")).write_text(f"{text}\n")
        (self.links / name).symlink_to(path)
        return path

    def part(self, disk: str, name: str, number: str, index: int) -> None:
        self.disk(name, number, parent=disk, partition=str(index))

    def volume(self, name: str, number: str, dm_name: str, *slaves: str, uuid: str = "") -> None:
        path = self.disk(name, number, dm__name=dm_name, dm__uuid=uuid or f"LVM-{VG}{OTHER}")
        (path / "slaves").mkdir()
        for slave in slaves:
            (path / "slaves" / slave).symlink_to(self.links / slave)

    def mount(self, point: str, source: str, number: str) -> None:
        self.mounts.append(f"{len(self.mounts) + 20} 1 {number} / {point} rw - ext4 {source} rw\n")

    def read(self) -> LocalStorage:
        init = self.roots.proc / "1"
        init.mkdir(parents=True, exist_ok=True)
        (init / "mountinfo").write_text("".join(self.mounts))
        return read_local_storage(self.roots)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_disks_have_their_numbers(sysfs: Sysfs) -> None:
    sysfs.disk("vdb", "253:16")
    sysfs.disk("cciss!c0d0", "104:0")
    for name, number in (("loop0", "7:0"), ("sr0", "11:0"), ("ram0", "1:0"), ("md0", "9:0")):
        sysfs.disk(name, number)
    sysfs.disk("loop1", "7:1", sectors=0)
    storage = sysfs.read()
    assert storage.disk_numbers == {"/dev/vdb": "253:16", "/dev/cciss/c0d0": "104:0"}


PARTITIONS = {
    "worked example": ("vdc", "253:32", "vdc3", "253:35", 3),
    "NVMe, whose minors follow no rule": ("nvme0n1", "259:0", "nvme0n1p1", "259:3", 1),
    "beyond the fifteenth: extended minors": ("sda", "8:0", "sda17", "259:7", 17),
    "listed before its disk": ("zdisk", "8:0", "apart", "8:1", 1),
}


@pytest.mark.parametrize(("disk", "number", "part", "part_number", "index"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_is_on_its_parent_disk(
    sysfs: Sysfs, disk: str, number: str, part: str, part_number: str, index: int
) -> None:
    sysfs.disk(disk, number)
    sysfs.part(disk, part, part_number, index)
    storage = sysfs.read()
    assert storage.partition_disk == {f"/dev/{part}": f"/dev/{disk}"}
    assert storage.disk_numbers == {f"/dev/{disk}": number}
    assert storage.disk_of(f"/dev/{part}") == f"/dev/{disk}" == storage.disk_of(f"/dev/{disk}")


def test_volume_groups_have_the_disk_below_their_volumes(sysfs: Sysfs) -> None:
    """One on a disk, one on a partition, one on two disks, a thin pool with hidden parts, a foreign dm device."""
    for name, number in (("vdb", "253:16"), ("vdc", "253:32"), ("vdd", "253:48")):
        sysfs.disk(name, number)
    sysfs.part("vdc", "vdc1", "253:33", 1)
    sysfs.volume("dm-0", "252:0", "yoda--pool0-lv--a", "vdb")
    sysfs.volume("dm-1", "252:1", "yoda--pool0-lv--b", "vdb")
    sysfs.volume("dm-2", "252:2", "small-root", "vdc1")
    sysfs.volume("dm-3", "252:3", "wide-striped", "vdb", "vdd")
    sysfs.volume("dm-4", "252:4", "thin-pool_tdata", "vdd", uuid=f"LVM-{VG}{OTHER}-tdata")
    sysfs.volume("dm-5", "252:5", "thin-pool-tpool", "dm-4", uuid=f"LVM-{VG}{OTHER}-tpool")
    sysfs.volume("dm-6", "252:6", "thin-vol", "dm-5")
    sysfs.volume("dm-7", "252:7", "secret", "vdd", uuid="CRYPT-LUKS2-1")
    storage = sysfs.read()
    assert storage.vg_disk == {"yoda-pool0": "/dev/vdb", "small": "/dev/vdc", "thin": "/dev/vdd"}
    assert storage.lv_vg == {
        "/dev/mapper/yoda--pool0-lv--a": "yoda-pool0",
        "/dev/mapper/yoda--pool0-lv--b": "yoda-pool0",
        "/dev/mapper/small-root": "small",
        "/dev/mapper/wide-striped": "wide",
        "/dev/mapper/thin-vol": "thin",
    }
    assert storage.disk_of("/dev/mapper/thin-vol") == "/dev/vdd"
    assert storage.disk_of("/dev/mapper/wide-striped") is None
    assert storage.disk_of("/dev/mapper/secret") is None
    assert set(storage.disk_numbers) == {"/dev/vdb", "/dev/vdc", "/dev/vdd"}


def test_mounts_show_the_source_on_top(sysfs: Sysfs) -> None:
    sysfs.disk("vda", "254:0")
    sysfs.mount("/", "/dev/root", "254:0")
    sysfs.mount("/data\\040of\\040pods", "/dev/vdb", "253:16")
    sysfs.mount("/data\\040of\\040pods", "tmpfs", "0:40")
    assert sysfs.read().mount_source == {"/": "/dev/vda", "/data of pods": "tmpfs"}


def test_malformed_content_is_named(sysfs: Sysfs, tmp_path: Path) -> None:
    (sysfs.disk("vdb", "253:16") / "size").write_text("many\n")
    with pytest.raises(MalformedFile, match="vdb/size"):
        sysfs.read()
    with pytest.raises(UnreadableFile, match="class/block"):
        read_local_storage(roots_under(tmp_path / "nothing"))


def test_a_device_that_is_removed_is_left_out(sysfs: Sysfs) -> None:
    sysfs.disk("vdb", "253:16")
    (sysfs.links / "vdc").symlink_to(sysfs.roots.sys / "devices/gone")
    assert set(sysfs.read().disk_numbers) == {"/dev/vdb"}


BLKPG, ADD, REMOVE = 0x1269, 1, 2
PART, SECTORS = 17, 8192


class _Partition(ctypes.Structure):
    """struct blkpg_partition of linux/blkpg.h."""

    _fields_ = (
        ("start", ctypes.c_longlong), ("length", ctypes.c_longlong), ("number", ctypes.c_int),
        ("name", ctypes.c_char * 64), ("volume", ctypes.c_char * 64),
    )  # fmt: skip


class _Argument(ctypes.Structure):
    _fields_ = (("op", ctypes.c_int), ("flags", ctypes.c_int), ("size", ctypes.c_int), ("data", ctypes.c_void_p))


def partition(device: str, op: int) -> None:
    """Add or remove partition 17, without a partition table."""
    part = _Partition(4096, SECTORS * 512 - 4096, PART, b"", b"")
    argument = _Argument(op, 0, ctypes.sizeof(part), ctypes.addressof(part))
    fd = os.open(device, os.O_RDWR)
    try:
        fcntl.ioctl(fd, BLKPG, argument)
    finally:
        os.close(fd)


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(SECTORS * 512)
    device = command("losetup", "--find", "--show", str(image))
    yield device
    command("losetup", "--detach", device)


def volume(stack: ExitStack, part: str) -> str | None:
    """A device like LVM's on `part`; None on a kernel without device-mapper."""
    if not Path("/sys/class/misc/device-mapper").exists():
        return None
    # With --verifyudev dmsetup creates the device file itself, whether or not udev runs.
    name, how = f"koord--test--{os.getpid()}-lv--1", ("--noudevrules", "--noudevsync", "--verifyudev")
    table = f"0 {SECTORS - 8} linear {part} 0"
    command("dmsetup", "create", name, "--uuid", f"LVM-{VG}{OTHER}", *how, "--table", table)
    stack.callback(command, "dmsetup", "remove", *how, name)
    return f"/dev/mapper/{name}"


@pytest.mark.kernel
def test_devices_of_the_kernel_are_found(loop: str, tmp_path: Path) -> None:
    """A partition beyond the fifteenth on a loop device; a volume on it where the kernel has device-mapper; a mount."""
    roots = Roots.host()
    watch = StorageWatch(roots)
    watch.changed()
    point = tmp_path / "mounted here"
    point.mkdir()
    part = f"{loop}p{PART}"
    with ExitStack() as stack:
        partition(loop, ADD)
        stack.callback(partition, loop, REMOVE)
        stack.callback(watch.close)
        assert watch.changed(), "a device was added"
        lv = volume(stack, part)
        command("mkfs.ext2", "-q", lv or part)
        command("mount", lv or part, str(point))
        stack.callback(command, "umount", str(point))
        assert watch.changed(), "a mount was added"
        storage = read_local_storage(roots)
        listed = command(
            "lsblk", "--noheadings", "--list", "--bytes", "--output", "NAME,TYPE,MAJ:MIN,SIZE"
        ).splitlines()
    assert storage.partition_disk[part] == loop
    assert storage.mount_source[str(point)] == (lv or part)
    assert loop not in storage.disk_numbers, "a loop device is not a disk"
    rows = [line.split() for line in listed]
    disks = {f"/dev/{name}": number for name, kind, number, size in rows if kind == "disk" and size != "0"}
    assert storage.disk_numbers == disks, "as in lsblk"
    if lv is not None:
        group = f"koord-test-{os.getpid()}"
        assert (storage.lv_vg[lv], storage.vg_disk[group], storage.disk_of(lv)) == (group, loop, loop)
