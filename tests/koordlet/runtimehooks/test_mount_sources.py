"""Directories of the host that containers write: no symbolic link is followed, and only root can place them."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.runtimehooks.protocols.mountsources import prepare_sources
from koordlet.runtimehooks.stages import ContainerMount, MountDirectory


def prepare(path: Path, kind: MountDirectory) -> None:
    prepare_sources([ContainerMount(str(path), "/d", directory=kind)])


@pytest.mark.parametrize("kind", [MountDirectory.SHARED, MountDirectory.FRESH])
def test_a_directory_is_created_below_a_closed_parent(tmp_path: Path, kind: MountDirectory) -> None:
    path = tmp_path / "vgpu/containers/1_main"
    prepare(path, kind)
    assert (path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o022) == (0o1777, 0)


def test_a_shared_directory_keeps_its_content_and_a_fresh_one_does_not(tmp_path: Path) -> None:
    for kind, kept in ((MountDirectory.SHARED, True), (MountDirectory.FRESH, False)):
        path = tmp_path / kind
        prepare(path, kind)
        (path / "lock").touch()
        prepare(path, kind)
        assert (path / "lock").exists() is kept


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "kept").touch()
    link = tmp_path / "vgpu/lock"
    link.parent.mkdir(mode=0o755)
    link.symlink_to(target)
    with pytest.raises(OSError, match=r"lock"):
        prepare(link, MountDirectory.SHARED)
    assert target.stat().st_mode & 0o777 == 0o700
    prepare(link, MountDirectory.FRESH)  # replaced by a directory
    assert not link.is_symlink() and (target / "kept").exists()


def test_a_parent_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    with pytest.raises(PermissionError, match="can be written by others"):
        prepare(tmp_path / "tmp/vgpulock", MountDirectory.SHARED)


def test_nothing_is_created_for_other_mounts(tmp_path: Path) -> None:
    prepare(tmp_path / "lib.so", MountDirectory.EXISTS)
    assert not (tmp_path / "lib.so").exists()
