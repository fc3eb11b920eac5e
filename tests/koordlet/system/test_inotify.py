"""inotify through ctypes: parsing, watching, limits."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.inotify import DirEvent, Inotify, parse

ISDIR = 0x40000000


def record(watch: int, mask: int, name: str = "") -> bytes:
    padded = (name.encode() + b"\0" * (16 - len(name.encode()) % 16)) if name else b""
    return struct.pack("iIII", watch, mask, 0, len(padded)) + padded


RECORDS = {
    "directory created": (record(3, 0x100 | ISDIR, "pod1"), DirEvent(3, "pod1", created=True, is_dir=True)),
    "file removed": (record(3, 0x200, "tasks"), DirEvent(3, "tasks", deleted=True)),
    "overflow": (record(-1, 0x4000), DirEvent(-1, overflow=True)),
    "watch ended": (record(7, 0x8000), DirEvent(7, ended=True)),
    "unmounted": (record(7, 0x2000), DirEvent(7, ended=True)),
}


@pytest.mark.parametrize(("data", "expected"), RECORDS.values(), ids=RECORDS)
def test_each_kind_of_record_is_parsed(data: bytes, expected: DirEvent) -> None:
    assert parse(data) == [expected]


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.text("abcé.-_", min_size=1, max_size=40))))
def test_records_of_any_length_follow_each_other(given_records: list[tuple[int, str]]) -> None:
    data = b"".join(record(watch, 0x100 | ISDIR, name) for watch, name in given_records)
    assert [(event.watch, event.name) for event in parse(data)] == given_records


@pytest.mark.parametrize("cut", [5, 17])
def test_a_truncated_record_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="truncated at byte"):
        parse(record(1, 0x100, "pod1")[:cut])


def test_created_and_removed_entries_are_reported(tmp_path: Path) -> None:
    inotify = Inotify()
    watch = inotify.add(tmp_path)
    assert inotify.read() == []
    (tmp_path / "a").mkdir()
    (tmp_path / "f").write_text("")
    (tmp_path / "a").rmdir()
    events = [(event.watch, event.name, event.created, event.deleted, event.is_dir) for event in inotify.read()]
    assert events == [
        (watch, "a", True, False, True),
        (watch, "f", True, False, False),
        (watch, "a", False, True, True),
    ]
    inotify.remove(watch)
    inotify.remove(watch)  # has ended already
    (tmp_path / "b").mkdir()
    assert [event.ended for event in inotify.read()] == [True]
    inotify.close()
    inotify.close()


def test_a_directory_has_one_watch(tmp_path: Path) -> None:
    inotify = Inotify()
    assert inotify.add(tmp_path) == inotify.add(str(tmp_path))
    inotify.close()


@pytest.mark.parametrize(("name", "number"), [("missing", errno.ENOENT), ("file", errno.ENOTDIR)])
def test_a_path_that_cannot_be_watched_is_an_error(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "file").write_text("")
    inotify = Inotify()
    with pytest.raises(OSError, match=name) as caught:
        inotify.add(tmp_path / name)
    assert caught.value.errno == number
    inotify.close()


def test_the_descriptor_is_not_inherited() -> None:
    inotify = Inotify()
    assert not os.get_inheritable(inotify.fd)
    inotify.close()
