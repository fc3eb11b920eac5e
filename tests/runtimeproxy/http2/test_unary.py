"""The proxy's own calls, answered by a real gRPC server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.http2 import frames as h2
from runtimeproxy.http2 import unary
from tests.runtimeproxy.http2.conftest import Anything
from tests.runtimeproxy.http2.test_link import runtime


@pytest.mark.parametrize("size", [0, 10, 200_000, 8 << 20])
async def test_answers(backend: Anything, tmp_path: Path, size: int) -> None:
    body = bytes(size)
    assert await unary.call(tmp_path / "backend.sock", "/any.Service/Echo", body, 30) == body


async def test_many_at_once(backend: Anything, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(20)]
    path = tmp_path / "backend.sock"
    assert await asyncio.gather(*(unary.call(path, "/any.Service/Echo", body, 30) for body in bodies)) == bodies


async def test_errors(backend: Anything, tmp_path: Path) -> None:
    with pytest.raises(unary.CallError, match="no such pod: ünter 100%") as failed:
        await unary.call(tmp_path / "backend.sock", "/any.Service/Fail", b"x", 30)
    assert failed.value.code == 5


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(unary.CallError, match="No such file") as failed:
        await unary.call(tmp_path / "backend.sock", "/any.Service/Fail", b"x", 30)
    assert failed.value.code is None


async def test_no_answer(backend: Anything, tmp_path: Path) -> None:
    with pytest.raises(unary.CallError, match="no answer within"):
        await unary.call(tmp_path / "backend.sock", "/any.Service/Hang", b"x", 0.2)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "can't be read"),
        (h2.settings() + h2.rst_stream(1, 7), "reset with code 7"),
        (h2.settings() + h2.goaway(), "goes away"),
        (h2.settings() + h2.head(1, h2.HEADERS, 5, 1) + b"\x88", "status"),
        (h2.head(1, h2.HEADERS, 5, 1) + b"\xc8", "can't be read"),
        (
            h2.head(15, h2.HEADERS, 5, 1) + b"\0\x0bgrpc-status\x010",
            "not one message",
        ),
    ],
)
async def test_nonsense(tmp_path: Path, sent: bytes, text: str) -> None:
    async def serve(reader: Any, writer: Any) -> None:
        await reader.readexactly(len(h2.PREFACE))
        writer.write(sent)
        await writer.drain()

    async with runtime(tmp_path / "odd.sock", serve):
        with pytest.raises(unary.CallError, match=text):
            await unary.call(tmp_path / "odd.sock", "/any.Service/Echo", b"x", 30)
