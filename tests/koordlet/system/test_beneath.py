"""Files below a root: neither `..` nor a symbolic link leads out of it, with and without openat2."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system import beneath, write
from koordlet.system.host import Host
from koordlet.system.roots import Roots

Open = Callable[[str, str, int], int]


def walked(root: str, path: str, flags: int) -> int:
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return beneath.walk_beneath(directory, path, flags)
    finally:
        os.close(directory)


WAYS: dict[str, Open] = {"openat2": beneath.open_beneath, "step by step": walked}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "pod/c").mkdir(parents=True)
    (root / "pod/c/cpu.shares").write_text("2")
    (root / "other").mkdir()
    (root / "other/cpu.shares").write_text("3")
    (tmp_path / "outside").write_text("host")
    (root / "link").symlink_to(tmp_path)
    (root / "pod/c/cpuset.cpus").symlink_to(tmp_path / "outside")
    (root / "inner").symlink_to("pod")
    return root


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_file_below_the_root_is_opened(root: Path, way: Open) -> None:
    fd = way(str(root), "pod/c/cpu.shares", os.O_RDONLY)
    try:
        assert os.read(fd, 10) == b"2"
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


REFUSED = {
    "upwards": ("../outside", (errno.EXDEV,)),
    "upwards from below": ("pod/../../outside", (errno.EXDEV,)),
    "to another pod": ("pod/../other/cpu.shares", (errno.EXDEV,)),
    "a linked directory": ("link/outside", (errno.ELOOP, errno.ENOTDIR)),
    "a link within the root": ("inner/c/cpu.shares", (errno.ELOOP, errno.ENOTDIR)),
    "a linked file": ("pod/c/cpuset.cpus", (errno.ELOOP,)),
    "no such file": ("pod/c/none", (errno.ENOENT,)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("path", "codes"), REFUSED.values(), ids=REFUSED)
def test_what_leads_elsewhere_is_refused(root: Path, way: Open, path: str, codes: tuple[int, ...]) -> None:
    with pytest.raises(OSError) as refused:
        way(str(root), path, os.O_RDONLY)
    assert refused.value.errno in codes


@pytest.mark.parametrize("path", ["", "/", "a\0b"])
def test_paths_that_are_none(root: Path, path: str) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        beneath.open_beneath(str(root), path, os.O_RDONLY)


def test_a_text_is_read_below_the_root_only(root: Path) -> None:
    assert beneath.read_text_beneath(str(root), "pod/c/cpu.shares") == "2"
    with pytest.raises(OSError, match=r"pod/c/cpuset\.cpus"):
        beneath.read_text_beneath(str(root), "pod/c/cpuset.cpus")


@pytest.mark.kernel
def test_nobody_makes_links_in_a_cgroup_file_system() -> None:
    """Why reads in bulk need no openat2."""
    mounts = Host(Roots.host()).facts.cgroup_mounts
    root = mounts.unified or mounts.hierarchy("cpu")
    assert root is not None
    group = root / f"koord-test-{os.getpid()}"
    group.mkdir()
    try:
        with pytest.raises(PermissionError):
            (group / "cpuset.cpus.link").symlink_to("/etc/hostname")
    finally:
        group.rmdir()


def test_this_kernel_has_openat2(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback is not used silently where the kernel is new enough."""
    if os.uname().release < "5.6":
        pytest.fail("these tests need Linux 5.6")
    monkeypatch.setattr(beneath, "walk_beneath", lambda *_: pytest.fail("openat2 was not used"))
    os.close(beneath.open_beneath(str(root), "pod/c/cpu.shares", os.O_RDONLY))


def test_a_kernel_without_openat2_uses_the_other_way(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "_number", 100_000)  # ENOSYS
    os.close(beneath.open_beneath(str(root), "pod/c/cpu.shares", os.O_RDONLY))
    with pytest.raises(OSError, match=r"cross-device|Invalid"):
        beneath.open_beneath(str(root), "../outside", os.O_RDONLY)


@pytest.mark.parametrize("path", ["pod/c/cpuset.cpus", "link/outside", "../outside"])
def test_a_write_does_not_change_a_file_outside(root: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises(write.WriteDenied, match="leaves the root"):
        write.write_value(f"{root}/{path}", "0-1", below=str(root))
    assert (tmp_path / "outside").read_text() == "host"
    with pytest.raises(write.WriteDenied):
        write.write_value(tmp_path / "outside", "0-1", below=str(root))


@given(st.lists(st.sampled_from(["..", ".", "pod", "c", "link", "inner", "cpu.shares", "cpuset.cpus", ""]), max_size=6))
def test_both_ways_open_only_files_of_the_root(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    base = tmp_path_factory.mktemp("beneath")
    root = base / "root"
    (root / "pod/c").mkdir(parents=True)
    (root / "pod/c/cpu.shares").write_text("2")
    (base / "cpu.shares").write_text("host")
    (root / "link").symlink_to(base)
    (root / "inner").symlink_to("pod")
    path = "/".join(parts)
    for way in WAYS.values():
        try:
            fd = way(str(root), path, os.O_RDONLY)
        except OSError:
            continue
        try:
            real = Path(f"/proc/self/fd/{fd}").readlink()
        finally:
            os.close(fd)
        assert real == root or root in real.parents
