"""Recordings of terminals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.recording import COLUMNS, ROWS, decoded, record


def test_a_recording_has_all_output_of_a_terminal(tmp_path: Path) -> None:
    out = tmp_path / "a.cast"
    script = "test -t 1 && stty size; printf 'a\\303'; sleep 0.5; printf '\\251b'; exit 3"
    assert record(["sh", "-c", script], out) == 3
    header, *events = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert (header["version"], header["width"], header["height"]) == (2, COLUMNS, ROWS)
    assert "".join(text for _, _, text in events) == f"{ROWS} {COLUMNS}\r\naéb"
    times = [seconds for seconds, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a", ("a", b"")),
        ("é".encode(), ("é", b"")),
        (b"a\xc3", ("a", b"\xc3")),
        (b"\xf0\x9f\x98", ("", b"\xf0\x9f\x98")),
        (b"\xff\xff\xff\xff\xffa", ("�����a", b"")),
    ],
    ids=["ascii", "whole", "half", "three of four bytes", "no UTF-8"],
)
def test_characters_are_not_cut(data: bytes, expected: tuple[str, bytes]) -> None:
    assert decoded(data) == expected
