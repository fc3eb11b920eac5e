"""Real gRPC peers on both sides of the splice observe what they would observe without it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from runtimeproxy.http2.interception import MAX_MESSAGE_BYTES, InterceptionRefused
from tests.runtimeproxy.http2.conftest import LIMITS, Anything, Spliced, client, server
from tests.waiting import until

SIZES = [0, 1, 5000, 16_384, 70_000, 1 << 20, 16 << 20]
PATHS = ["/any.Service/Echo", "/x.Hooked/Echo"]
METADATA = (("key", "value"), ("key", "again"), ("traceparent", "00-ab-cd-01"), ("some-bin", b"\x00\x01\xff"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", SIZES)
async def test_messages_of_all_sizes(channel: Any, backend: Anything, spliced: Spliced, path: str, size: int) -> None:
    body = os.urandom(min(size, 1 << 16)) * (size // min(size, 1 << 16) if size else 1) if size else b""
    assert await channel.unary_unary(path)(body) == body
    assert backend.requests == [body]
    assert spliced.said("request") == ([body] if "Hooked" in path else [])
    assert spliced.holding.held == 0


@pytest.mark.parametrize("path", PATHS)
async def test_many_messages_each_way(channel: Any, path: str) -> None:
    """One or many messages, each way; of intercepted streams only the first message is read."""
    messages = [b"a" * size for size in (0, 1, 100, 100_000, 3)]

    async def asked() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    assert [response async for response in channel.stream_stream(path)(asked())] == messages
    assert [response async for response in channel.unary_stream(path)(b"one")] == [b"one"]
    single = await channel.stream_unary(path)(iter([b"only"]))
    assert single == b"only"


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_is_alive_both_ways(channel: Any, path: str) -> None:
    """Each message gets its response before the next is sent: nothing waits for the end of the stream."""
    call = channel.stream_stream(path)()
    for number in range(20):
        message = b"%d" % number * 1000
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("path", PATHS)
async def test_metadata_both_ways(channel: Any, backend: Anything, path: str) -> None:
    call = channel.unary_unary(path)(b"x", metadata=METADATA)
    await call
    (method, heard) = backend.calls[-1]
    assert method == path
    assert sorted(str(metadata) for metadata in heard if metadata in METADATA) == sorted(map(str, METADATA))
    assert ("first", "metadata") in tuple(await call.initial_metadata())
    assert ("last-bin", b"\x01\xfe") in tuple(await call.trailing_metadata())


@pytest.mark.parametrize("service", ["any.Service", "x.Hooked"])
async def test_errors_are_the_runtimes_own(channel: Any, spliced: Spliced, service: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await channel.unary_unary(f"/{service}/Fail")(b"x")
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert failed.value.details() == "no such pod: ünter 100%"
    assert ("grpc-status-details-bin", b"\x08\x05\x12\x03why") in tuple(failed.value.trailing_metadata())
    assert spliced.said("answered") == ([None] if service == "x.Hooked" else [])


@pytest.mark.parametrize("service", ["any.Service", "x.Hooked"])
async def test_deadlines_reach_the_runtime(channel: Any, backend: Anything, service: str) -> None:
    await channel.unary_unary(f"/{service}/Echo")(b"x", timeout=50)
    assert backend.remaining[0] is not None
    assert 0 < backend.remaining[0] <= 50.1  # gRPC rounds timeouts up, from 10 s on to tenths
    for seconds in (0.3, 3.0, 30.0):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(f"/{service}/Hang")(b"x", timeout=seconds)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if len(backend.requests) > 1:
            break  # else the machine stalled, and the deadline passed before the runtime was called
    await until(lambda: backend.cancelled)


@pytest.mark.parametrize("service", ["any.Service", "x.Hooked"])
async def test_cancellation_reaches_the_runtime(
    channel: Any, backend: Anything, spliced: Spliced, service: str
) -> None:
    call = channel.unary_unary(f"/{service}/Hang")(b"x")
    await until(lambda: backend.requests == [b"x"])
    call.cancel()
    await until(lambda: backend.cancelled == 1)
    assert await channel.unary_unary(f"/{service}/Echo")(b"y") == b"y"
    if service == "x.Hooked":
        assert spliced.said("answered") == [None, b"y"]


async def test_cancellation_reaches_the_hook(channel: Any, backend: Anything, spliced: Spliced) -> None:
    async def never(body: bytes) -> bytes:
        await asyncio.Event().wait()
        return body

    spliced.change = never
    call = channel.unary_unary("/x.Hooked/Echo")(b"x")
    await until(lambda: spliced.said("request"))
    call.cancel()
    await until(lambda: spliced.said("cancelled"))
    assert spliced.said("answered") == [None]
    assert backend.requests == []
    assert spliced.holding.held == 0


@pytest.mark.parametrize(
    ("before", "after"), [(10, 10), (10, 0), (10, 100_000), (100_000, 10), (16 << 20, (16 << 20) + 99)]
)
async def test_a_body_is_replaced(channel: Any, backend: Anything, spliced: Spliced, before: int, after: int) -> None:
    async def change(body: bytes) -> bytes:
        await asyncio.sleep(0)
        return b"n" * after

    spliced.change = change
    assert await channel.unary_unary("/x.Hooked/Echo")(b"o" * before) == b"n" * after
    assert backend.requests == [b"n" * after]
    assert spliced.said("answered") == [b"n" * after] if after < 1 << 20 else [None]


async def test_two_hundred_at_once(channel: Any, backend: Anything, spliced: Spliced) -> None:
    """Bodies shrink and grow in transit, beside forwarded calls; every response belongs to its own call."""

    async def change(body: bytes) -> bytes:
        number = int(body[:4])
        await asyncio.sleep(number % 7 / 500)
        return body[:4] + b"." * (number * 37 % 9000)

    async def call(number: int) -> None:
        name, text = number % 2, b"%04d" % number
        body = text + b"x" * (number * 91 % 20_000)
        answer = await channel.unary_unary(PATHS[name])(body)
        assert answer == (text + b"." * (number * 37 % 9000) if name else body)

    spliced.change = change
    for _ in range(3):
        await asyncio.gather(*(call(number) for number in range(200)))
    assert len(spliced.said("answered")) == 300
    assert spliced.holding.held == 0


async def test_refused(channel: Any, backend: Anything, spliced: Spliced) -> None:
    async def refuse(body: bytes) -> bytes:
        if body != b"fine":
            raise InterceptionRefused("hook server err: 100% nö\n" + "x" * 300)
        return body

    spliced.change = refuse
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/x.Hooked/Echo")(b"x" * 70_000)
        assert failed.value.code() is grpc.StatusCode.UNKNOWN
        assert failed.value.details() == "hook server err: 100% nö\n" + "x" * 300
        assert await channel.unary_unary("/x.Hooked/Echo")(b"fine") == b"fine"
    assert backend.requests == [b"fine"] * 3
    assert spliced.said("answered") == [None, b"fine"] * 3
    assert len(spliced.links) == 1


async def test_a_bug_of_the_proxy_fails_no_call(channel: Any, backend: Anything, spliced: Spliced) -> None:
    async def broken(body: bytes) -> bytes:
        raise ZeroDivisionError

    spliced.change = broken
    assert await channel.unary_unary("/x.Hooked/Echo")(b"x") == b"x"
    assert spliced.said("passed") == ["error"]


@pytest.mark.parametrize("path", PATHS)
async def test_gzip(spliced: Spliced, backend: Anything, path: str) -> None:
    async def change(body: bytes) -> bytes:
        return body + b"more"

    spliced.change = change
    async with client(spliced.path, compression=grpc.Compression.Gzip) as channel:
        body = b"a" * 100_000
        hooked = "Hooked" in path
        assert await channel.unary_unary(path)(body) == (body + b"more" if hooked else body)
        assert spliced.said("request") == ([body] if hooked else [])


async def test_other_compression_passes_untouched(spliced: Spliced, backend: Anything) -> None:
    async with client(spliced.path, compression=grpc.Compression.Deflate) as channel:
        body = b"a" * 100_000
        assert await channel.unary_unary("/x.Hooked/Echo")(body) == body
    assert spliced.said("passed") == ["encoding"]


async def test_more_than_is_held_passes_untouched(channel: Any, spliced: Spliced, backend: Anything) -> None:
    body = bytes(MAX_MESSAGE_BYTES + 1)
    assert await channel.unary_unary("/x.Hooked/Echo")(body) == body
    assert spliced.said("passed") == ["size"]
    spliced.holding.limit = 1000
    assert await channel.unary_unary("/x.Hooked/Echo")(bytes(2000)) == bytes(2000)
    assert spliced.said("passed") == ["size", "held too much"]
    assert spliced.holding.held == 0


async def test_several_clients(spliced: Spliced, backend: Anything) -> None:
    async def call(number: int) -> None:
        async with client(spliced.path, [*LIMITS, ("grpc.use_local_subchannel_pool", 1)]) as channel:
            body = b"%d" % number
            assert await channel.unary_unary(PATHS[number % 2])(body) == body

    await asyncio.gather(*(call(number) for number in range(40)))
    await until(lambda: not spliced.links)
    assert spliced.broken == 0


async def test_small_windows(tmp_path: Any, spliced: Spliced) -> None:
    """A runtime that gives little credit at a time still gets everything."""
    options = [*LIMITS, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]

    async def change(body: bytes) -> bytes:
        return body * 3

    spliced.change = change
    async with server(tmp_path / "backend.sock", options), client(spliced.path, options) as channel:
        bodies = [bytes([number]) * 40_000 for number in range(20)]
        answers = await asyncio.gather(
            *(channel.unary_unary(PATHS[number % 2])(body) for number, body in enumerate(bodies))
        )
    assert answers == [body * 3 if number % 2 else body for number, body in enumerate(bodies)]


async def test_the_runtime_restarts(tmp_path: Any, spliced: Spliced) -> None:
    """Clients lose their calls as without the splice, and connect to the new runtime by themselves."""
    async with client(spliced.path) as channel:
        async with server(tmp_path / "backend.sock") as first:
            call = channel.unary_unary("/any.Service/Hang")(b"x")
            await until(lambda: first.requests == [b"x"])
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await until(lambda: not spliced.links)
        async with server(tmp_path / "backend.sock"):
            assert await channel.unary_unary("/x.Hooked/Echo")(b"x", wait_for_ready=True, timeout=30) == b"x"


async def test_goaway(channel: Any, backend: Anything, spliced: Spliced) -> None:
    """After GOAWAY a client finishes its calls first."""
    call = channel.stream_stream("/any.Service/Echo")()
    await call.write(b"before")
    assert await call.read() == b"before"
    (link,) = spliced.links
    link.send_goaway()
    await call.write(b"after")
    assert await call.read() == b"after"
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    del call  # it keeps its connection
    await until(lambda: link not in spliced.links, 5)
    assert await channel.unary_unary("/any.Service/Echo")(b"x", wait_for_ready=True) == b"x"
