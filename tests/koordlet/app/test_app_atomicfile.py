"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from koordlet.app import atomicfile


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_content_and_mode_are_replaced_whatever_the_umask(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        atomicfile.write(path, b"new", mode=mode)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert mode_of(path) == mode
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_write_is_synchronised(path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[int] = []
    monkeypatch.setattr(os, "fsync", synchronised.append)
    atomicfile.write(path, b"new", durable=durable)
    assert len(synchronised) == durable


def test_a_reader_sees_the_old_content_until_the_end(path: Path) -> None:
    with atomicfile.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_failure_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        atomicfile.write(path, b"new")
    with pytest.raises(ValueError, match="stop"), atomicfile.replacing(path) as file:
        file.write(b"new")
        raise ValueError("stop")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_remainder_of_a_killed_writer_is_not_followed(path: Path) -> None:
    """Not even a symbolic link to another file."""
    other = path.with_name("other")
    other.write_bytes(b"untouched")
    path.with_name("file.tmp").symlink_to(other)
    atomicfile.write(path, b"new")
    assert (path.read_bytes(), other.read_bytes()) == (b"new", b"untouched")
    assert not path.is_symlink()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomicfile.write(tmp_path / "nowhere/file", b"new")
