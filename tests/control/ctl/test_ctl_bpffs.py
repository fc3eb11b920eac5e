"""Removal of pins and mounts of a killed koordlet. Plain files stand for pins; the mount is real."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.ctl.node import bpffs
from koordlet.probes.loading import bpffs as koordlets


def test_the_mount_mark_equals_koordlets() -> None:
    assert bpffs.MOUNT_MARK == koordlets.MOUNTED_BY_US


def test_pins_are_removed_with_their_folders(tmp_path: Path) -> None:
    pins = tmp_path / "koordlet" / "sched_latency" / "abc"
    (pins / "ready").mkdir(parents=True)
    for name in ("map_slots", "link_switch", "link_wakeup"):
        (pins / name).touch()
    assert len(bpffs.pins(tmp_path / "koordlet")) == 6
    assert bpffs.remove_pins(tmp_path / "koordlet") == 3
    assert not (tmp_path / "koordlet").exists()
    assert bpffs.remove_pins(tmp_path / "koordlet") == 0


def test_the_mount_point_of_a_folder_that_is_gone() -> None:
    assert bpffs.mount_point(Path("/proc/no/such/folder")) == Path("/proc")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "bpf"
    place.mkdir()
    assert libc.mount(b"bpf", os.fsencode(place), b"bpf", 0, None) == 0, os.strerror(ctypes.get_errno())
    yield place
    libc.umount2(os.fsencode(place), 0)


@pytest.mark.kernel
def test_only_an_empty_mount_of_koordlet_is_unmounted(mount: Path) -> None:
    assert bpffs.mount_point(mount / "koordlet") == mount
    assert not bpffs.is_koordlet_mount(mount)
    (mount / bpffs.MOUNT_MARK).mkdir()
    (mount / "other").mkdir()
    assert bpffs.is_koordlet_mount(mount)
    assert bpffs.unmount(mount) == "still in use by other"
    (mount / "other").rmdir()
    assert bpffs.unmount(mount) is None
    assert not mount.is_mount()
