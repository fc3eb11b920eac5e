"""Reflection as grpcurl asks for it: one stream, question by question; read with messages of protobuf's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import DESCRIPTOR
from koordlet.app.http2.reflection import PATHS, Reflection
from koordlet.app.http2.server import CallRefused, GrpcServer, Stream

STRING, BYTES, INT32, MESSAGE = 9, 12, 5, 11
SCHEMA: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "Request": [("host", 1, STRING, False), ("by_name", 3, STRING, False), ("by_symbol", 4, STRING, False),
                ("list", 7, STRING, False)],
    "Files": [("file", 1, BYTES, True)],
    "Service": [("name", 1, STRING, False)],
    "Services": [("service", 1, "Service", True)],
    "Error": [("code", 1, INT32, False), ("message", 2, STRING, False)],
    "Response": [("host", 1, STRING, False), ("original", 2, "Request", False), ("files", 4, "Files", False),
                 ("services", 6, "Services", False), ("error", 7, "Error", False)],
}  # fmt: skip
"""Of grpc.reflection.v1: message -> (field, number, type, repeated)."""


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="t", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added: Any = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                added.type, added.type_name = MESSAGE, f".t.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in SCHEMA}


MESSAGES = _messages()
Request, Response = MESSAGES["Request"], MESSAGES["Response"]
LISTING = b"\x3a\x01*"
"""list_services, "*"."""


def asked(data: bytes) -> Any:
    return Response.FromString(Reflection([DESCRIPTOR]).answer(data))


def test_services_are_listed() -> None:
    answer = asked(LISTING)
    assert [service.name for service in answer.services.service] == [SERVICE]
    assert answer.original.list == "*"


@pytest.mark.parametrize(
    "question",
    [
        {"by_symbol": SERVICE},
        {"by_symbol": f"{SERVICE}.PreRunPodSandboxHook"},
        {"by_symbol": "runtime.v1alpha1.PodSandboxHookRequest"},
        {"by_name": DESCRIPTOR.name},
    ],
    ids=["service", "method", "message", "file"],
)
def test_a_description_is_enough_to_call(question: dict[str, str]) -> None:
    answer = asked(Request(host="h", **question).SerializeToString())
    assert answer.host == "h"
    (data,) = answer.files.file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    method = pool.FindServiceByName(SERVICE).FindMethodByName("PreRunPodSandboxHook")
    assert method.input_type.full_name == "runtime.v1alpha1.PodSandboxHookRequest"


@pytest.mark.parametrize("question", [{"by_symbol": "no.Such"}, {"by_name": "no.proto"}], ids=["symbol", "file"])
def test_what_is_not_there_is_said_to_be_not_there(question: dict[str, str]) -> None:
    (name,) = question.values()
    error = asked(Request(**question).SerializeToString()).error
    assert (error.code, error.message) == (grpc.StatusCode.NOT_FOUND.value[0], f"not found: {name}")


@given(st.binary(max_size=40))
def test_no_request_does_more_than_be_refused(data: bytes) -> None:
    with suppress(CallRefused):
        Reflection([DESCRIPTOR]).answer(data)


@asynccontextmanager
async def streaming(
    path: Path, stream: Stream | None = None, at: str = PATHS[0]
) -> AsyncIterator[tuple[GrpcServer, Any]]:
    """A server and one open stream of its."""
    server = GrpcServer({at: stream} if stream else Reflection([DESCRIPTOR]).streams())
    await server.start(path)
    options = [("grpc.use_local_subchannel_pool", 1)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            yield server, channel.stream_stream(at)(timeout=60.0)
    finally:
        await server.stop(60.0)


@pytest.mark.parametrize("at", PATHS)
async def test_question_by_question_on_one_stream(tmp_path: Path, at: str) -> None:
    async with streaming(tmp_path / "k.sock", at=at) as (server, call):
        for question in (LISTING, Request(by_symbol=SERVICE).SerializeToString(), LISTING):
            await call.write(question)
            assert await call.read() == Reflection([DESCRIPTOR]).answer(question)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert server.held == 0


async def test_a_stream_without_a_question_ends_well(tmp_path: Path) -> None:
    async with streaming(tmp_path / "k.sock") as (_, call):
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_a_question_of_many_frames(tmp_path: Path) -> None:
    async with streaming(tmp_path / "k.sock", Stream(lambda data: b"%d" % len(data))) as (server, call):
        for size in (100_000, 0, 1_000_000):
            await call.write(bytes(size))
            assert await call.read() == b"%d" % size
        assert server.held == 0


async def test_what_is_no_request_ends_the_stream_and_nothing_else(tmp_path: Path) -> None:
    async with streaming(tmp_path / "k.sock") as (server, call):
        await call.write(b"\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "malformed ServerReflectionRequest"
        assert server.held == 0
        assert len(server.connections) == 1


async def test_a_stop_waits_for_no_open_stream(tmp_path: Path) -> None:
    async with streaming(tmp_path / "k.sock") as (server, call):
        await call.write(LISTING)
        await call.read()
        await server.stop(60.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
