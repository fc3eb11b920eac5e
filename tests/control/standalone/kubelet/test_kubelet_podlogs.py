"""Reading logs across rotations and crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.pods.logs import LogQuery, parse_line, stamp_seconds, stream
from control.standalone.kubelet.runtimes.launcher import ContainerLog


def line(i: int, tag: str = "F", text: str = "") -> str:
    return f"2026-01-01T00:00:{i:02d}.000000000Z stdout {tag} {text or f'l{i}'}\n"


async def collect(path: Path, query: LogQuery, running: Any = lambda: False) -> bytes:
    return b"".join([data async for data in stream(path, query, running)])


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"2026-01-01T00:00:00Z stdout F a b", ("a b", True)),
        (b"2026-01-01T00:00:00Z stdout P a", ("a", False)),
        (b"2026-01-01T00:00:00Z stdout F ", ("", True)),
        (b"2026-01-01T00:00:00Z stdout X a", None),
        (b"2026-01-", None),
        (b"", None),
    ],
)
def test_parse_line(raw: bytes, parsed: Any) -> None:
    line = parse_line(raw)
    assert (None if line is None else (line.text.decode(), line.whole)) == parsed


def test_stamp() -> None:
    assert stamp_seconds("1970-01-01T00:00:10.500000000Z") == 10.5
    assert stamp_seconds("yesterday") is None


async def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    (tmp_path / "0.log.2").write_text(line(1))
    (tmp_path / "0.log.1").write_text(line(2))
    path.write_text(line(3))
    assert await collect(path, LogQuery()) == b"l1\nl2\nl3\n"
    assert await collect(path, LogQuery(tail=2)) == b"l2\nl3\n"


async def test_partial_lines_are_joined_and_truncated_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(line(1, "P", "ab") + line(1, "F", "cd") + "2026-01-01T00:00:02Z stdout F half")
    assert await collect(path, LogQuery()) == b"abcd\n"


async def test_follow_continues_after_a_rotation_until_the_container_ends(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(line(1))
    alive = True
    lines_stream = stream(path, LogQuery(follow=True), lambda: alive)
    assert await anext(lines_stream) == b"l1\n"
    with path.open("a") as f:
        f.write(line(2))
    path.rename(tmp_path / "0.log.1")
    path.write_text(line(3))
    alive = False
    assert [data async for data in lines_stream] == [b"l2\n", b"l3\n"]


def test_a_failed_rotation_does_not_stop_the_container(tmp_path: Path) -> None:
    """As on a full disk: the shim must survive, else its container would be killed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log = ContainerLog(str(folder / "0.log"), limit=100, files=2)
    log.feed("stdout", b"first\n")
    folder.rename(tmp_path / "away")
    log.feed("stdout", b"second, which makes the file too long for its limit\nthird\n")
    folder.mkdir()
    log.feed("stdout", b"fourth\n")
    log.close()
    assert [line.split(b" ", 3)[3] for line in (folder / "0.log").read_bytes().splitlines()] == [b"fourth"]


async def test_no_file_is_no_output(tmp_path: Path) -> None:
    assert await collect(tmp_path / "none.log", LogQuery(follow=True)) == b""
