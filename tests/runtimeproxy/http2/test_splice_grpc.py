"""Real gRPC peers on both sides of the splice see what they would see without it."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from tests.runtimeproxy.http2.conftest import Anything, Spliced


async def test_a_call(channel: grpc.aio.Channel, backend: Anything) -> None:
    assert await channel.unary_unary("/any.Service/Echo")(b"abc") == b"abc"
    assert backend.requests == [b"abc"]


@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 16 << 20])
async def test_hooked(channel: grpc.aio.Channel, backend: Anything, spliced: Spliced, size: int) -> None:
    body = bytes(size)
    assert await channel.unary_unary("/x.Hooked/Echo")(body) == body
    assert backend.requests == [body]
    assert spliced.said("request") == [body]
    assert spliced.holding.held == 0
