"""Docker mode over real sockets, on asyncio's loop and on uvloop, in front of a dockerd of the test's own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from koordlet.api.hooks.api_pb2 import PodSandboxHookResponse
from runtimeproxy.dispatch import Outcome, Policy
from runtimeproxy.docker.api import DockerApi, DockerError, NoSuchContainer
from runtimeproxy.docker.server import DockerServer, serve_docker
from runtimeproxy.hooks import Hook, HookRequest
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.podhooks import SkipRule
from runtimeproxy.store import Store
from tests.runtimeproxy.docker.conftest import UID, Hooks, sandbox_body

PATIENCE = 60.0
MIB = 1 << 20
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Test = Callable[..., Coroutine[Any, Any, None]]
BODY = json.dumps(sandbox_body()).encode()
CREATE = (
    f"POST /v1.40/containers/create?name=k8s_POD_web-0_shop_{UID}_0 HTTP/1.1\r\nHost: docker\r\n"
    f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
ATTACH = b"POST /containers/x/attach?stream=1 HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE):
                await test(tmp_path)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run


class Backend:
    """A dockerd that answers the proxy's own questions, and `handle`s every other connection."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.clients: set[asyncio.StreamWriter] = set()
        self.began = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        try:
            start = await reader.readexactly(9)
            if start in (b"GET /info", b"GET /cont"):
                body = b'{"CgroupDriver":"cgroupfs"}' if start == b"GET /info" else b"[]"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            else:
                self.began += 1
                joined = asyncio.StreamReader()
                joined.feed_data(start)
                feeding = asyncio.create_task(_feed(reader, joined))
                try:
                    await self._handle(joined, writer)
                finally:
                    feeding.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.clients.discard(writer)
            writer.close()


async def _feed(source: asyncio.StreamReader, into: asyncio.StreamReader) -> None:
    while data := await source.read(1 << 16):
        into.feed_data(data)
    into.feed_eof()


@asynccontextmanager
async def front(folder: Path, handle: Handle, hooks: Hooks | None = None) -> AsyncIterator[tuple[Path, DockerServer]]:
    backend = Backend(handle)
    server = await asyncio.start_unix_server(backend, str(folder / "d.sock"))
    store, path = Store(), folder / "p.sock"
    proxy = await serve_docker(
        path, folder / "d.sock", store, hooks or Hooks(), SkipRule(), ProxyMetrics.of()  # type: ignore[arg-type]
    )  # fmt: skip
    try:
        yield path, proxy
    finally:
        await proxy.stop(0.0)
        server.close()
        await settled(lambda: not backend.clients)


async def settled(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - bounded by the test's own time
        await asyncio.sleep(0.005)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """A request with a Content-Length or without a body."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.partition(b":")[2]))
    return head


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def test_an_upgraded_connection_with_a_half_closed_client(run: Callable[[Test], None]) -> None:
    async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(UPGRADED)
        stdin = await reader.read()  # to the end that the client sends
        writer.write(b"%d bytes, then " % len(stdin) + stdin[-3:])

    async def test(folder: Path) -> None:
        async with front(folder, dockerd) as (path, _):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(ATTACH)
            assert await reader.readexactly(len(UPGRADED)) == UPGRADED
            writer.write(b"x" * MIB + b"end")
            writer.write_eof()
            assert await reader.read() == b"1048579 bytes, then end"
            await ended(writer)

    run(test)


def test_a_client_that_leaves_a_stream_is_gone_for_dockerd_too(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        gone = asyncio.Event()

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n")
            assert await reader.read() == b""
            gone.set()

        async with front(folder, dockerd) as (path, proxy):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET /events HTTP/1.1\r\nHost: docker\r\n\r\n")
            await reader.readuntil(b"event\r\n")
            await ended(writer)
            await gone.wait()
            await settled(lambda: not proxy.links)

    run(test)


def test_dockerds_end_is_the_clients(run: Callable[[Test], None]) -> None:
    async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ntorn")

    async def test(folder: Path) -> None:
        async with front(folder, dockerd) as (path, proxy):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET /version HTTP/1.1\r\nHost: docker\r\n\r\n")
            assert (await reader.read()).endswith(b"torn")
            await settled(lambda: not proxy.links)
            await ended(writer)

    run(test)


def test_pipelined_calls_are_answered_in_their_order(run: Callable[[Test], None]) -> None:
    async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_request(reader)
            body = head.split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def test(folder: Path) -> None:
        hooks = Hooks()
        hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = Outcome(None, Policy.FAIL, "no")
        async with front(folder, dockerd, hooks) as (path, _):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET /one HTTP/1.1\r\n\r\n" + CREATE + b"GET /two HTTP/1.1\r\nConnection: close\r\n\r\n")
            said = await reader.readuntil(b"/two")
            assert [said.find(one) for one in (b"/one", b"hook server err: no", b"/two")] == sorted(
                said.find(one) for one in (b"/one", b"hook server err: no", b"/two")
            )
            assert said.count(b"HTTP/1.1 200 OK") == 2 and said.count(b"HTTP/1.1 500 ") == 1
            await ended(writer)

    run(test)


def test_a_client_that_leaves_cancels_its_hook(run: Callable[[Test], None]) -> None:
    async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("must not be asked")

    async def test(folder: Path) -> None:
        asked, cancelled = asyncio.Event(), asyncio.Event()

        class Slow(Hooks):
            async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> Outcome:
                asked.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
                raise AssertionError

        async with front(folder, dockerd, Slow()) as (path, proxy):
            _, writer = await asyncio.open_unix_connection(str(path))
            writer.write(CREATE)
            await asked.wait()
            await ended(writer)
            await cancelled.wait()
            await settled(lambda: not proxy.links)

    run(test)


def test_an_upload_waits_for_a_slow_reader(run: Callable[[Test], None]) -> None:
    size = 48 * MIB

    async def test(folder: Path) -> None:
        read = asyncio.Event()
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "d.sock"))
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        data = memoryview(b"POST /images/load HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        got = 0

        async def dockerd() -> None:
            """Reads nothing before it is told to."""
            nonlocal got
            connection, _ = await loop.sock_accept(listener)
            await read.wait()
            with connection:
                while got < len(data) and (piece := await loop.sock_recv(connection, MIB)):
                    got += len(piece)
                await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        serving = asyncio.create_task(dockerd())
        context: Any = type("Nobody", (), {"metrics": ProxyMetrics.of(), "finish": staticmethod(_nothing)})()
        proxy = DockerServer(folder / "d.sock", context)
        await proxy.start(folder / "p.sock")
        with raw, listener:
            raw.connect(str(folder / "p.sock"))
            total, stuck = 0, 0
            while total < len(data) and stuck < 40:
                try:
                    total += raw.send(data[total : total + MIB])
                    stuck = 0
                except BlockingIOError:
                    stuck += 1
                    await asyncio.sleep(0.005)
            assert total < 24 * MIB, "an upload that nobody reads must not be kept in memory"
            read.set()
            await loop.sock_sendall(raw, data[total:])
            assert (await loop.sock_recv(raw, 1000)).startswith(b"HTTP/1.1 200 OK")
            await serving
            assert got == len(data)
        await proxy.stop(0.0)

    run(test)


async def _nothing() -> None: ...


def test_a_stop_waits_for_calls_not_for_streams(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        stopping = asyncio.Event()

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (await read_request(reader)).startswith(b"POST /containers/x/attach"):
                writer.write(UPGRADED)
                await reader.read()
            else:
                await stopping.wait()
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

        async with front(folder, dockerd) as (path, proxy):
            stream, stream_writer = await asyncio.open_unix_connection(str(path))
            stream_writer.write(ATTACH)
            await stream.readexactly(len(UPGRADED))
            call, call_writer = await asyncio.open_unix_connection(str(path))
            call_writer.write(b"POST /containers/x/kill HTTP/1.1\r\nHost: docker\r\n\r\n")
            await settled(lambda: any(link.busy for link in proxy.links))
            stop = asyncio.create_task(proxy.stop(PATIENCE))
            await asyncio.sleep(0)
            stopping.set()
            assert await call.read() == b"HTTP/1.1 204 No Content\r\n\r\n"
            assert await stream.read() == b""
            await stop
            assert not proxy.links
            for writer in (stream_writer, call_writer):
                await ended(writer)

    run(test)


def test_a_client_is_told_by_its_end_that_dockerd_went(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

        async with front(folder, dockerd) as (path, _):
            (folder / "d.sock").unlink()
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(CREATE)
            try:
                assert await reader.read() == b""
            except ConnectionResetError:  # what was written had not been read
                writer.transport.abort()
            writer.close()

    run(test)


def test_a_sandbox_through_it_all(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        got: list[bytes] = []

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await read_request(reader))
            writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\n{"Id":1}')

        hooks = Hooks()
        hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = PodSandboxHookResponse(labels={"new": "1"})
        async with front(folder, dockerd, hooks) as (path, _):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(CREATE)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 201 Created")
            await ended(writer)
        body = json.loads(got[0].partition(b"\r\n\r\n")[2])
        assert body["Labels"] == {**sandbox_body()["Labels"], "new": "1"}

    run(test)


# -- the proxy's own questions


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b'HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n{"CgroupDriver":"systemd"}more', id="length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'5\r\n{"Cgr\r\n15\r\noupDriver":"systemd"}\r\n0\r\n\r\n',
            id="chunked",
        ),
        pytest.param(b'HTTP/1.0 200 OK\r\n\r\n{"CgroupDriver":"systemd"}', id="to-the-end"),
    ],
)
async def test_an_answer_in_any_framing(tmp_path: Path, answer: bytes) -> None:
    async with says(tmp_path, answer) as api:
        assert (await api.info()).cgroup_driver == "systemd"


@asynccontextmanager
async def says(folder: Path, answer: bytes) -> AsyncIterator[DockerApi]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, str(folder / "d.sock"))
    yield DockerApi(folder / "d.sock", seconds=PATIENCE)
    server.close()
    await server.wait_closed()


async def test_questions_share_a_connection_only_while_they_are_told_to(tmp_path: Path) -> None:
    connections: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: list[bytes] = []
        connections.append(asked)
        while head := await reader.read(1000):  # a question comes in one write
            asked.append(head.split(b" ")[1])
            last = asked[-1] == b"/containers/two/json"
            said = b'{"Id":"x","Name":"n","Config":{}}'
            close = b"Connection: close\r\n" if last else b""
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(said), close, said))
            if last:
                break
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "d.sock"))
    api = DockerApi(tmp_path / "d.sock", seconds=PATIENCE)
    async with api.kept():
        for one in ("one", "two", "three", "four"):
            await api.inspect(one)
    await api.inspect("five")
    server.close()
    await server.wait_closed()
    said = [[path.split(b"/")[2].decode() for path in asked] for asked in connections]
    assert said == [["one", "two"], ["three", "four"], ["five"]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(b"HTTP/1.1 500 Oh\r\nContent-Length: 16\r\n\r\n{\"message\":\"no\"}", "500 no", id="error"),
        pytest.param(b"HTTP/1.1 502 Oh\r\nContent-Length: 2\r\n\r\nno", "502 no", id="error-in-text"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "in the middle", id="torn"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "/info", id="other-kind"),
        pytest.param(b"SSH-2.0\r\n\r\n", "SSH", id="garbage"),
        pytest.param(b"", "in the middle", id="nothing"),
    ],
)  # fmt: skip
async def test_what_is_no_answer(tmp_path: Path, answer: bytes, said: str) -> None:
    async with says(tmp_path, answer) as api:
        with pytest.raises(DockerError, match=said):
            await api.info()


async def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(DockerError, match=r"d\.sock"):
        await DockerApi(tmp_path / "d.sock").info()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "d.sock"))
        silent.listen()
        with pytest.raises(DockerError, match=r"no answer in 0\.05 s"):
            await DockerApi(tmp_path / "d.sock", seconds=0.05).info()


async def test_a_container_that_is_not_there(tmp_path: Path) -> None:
    async with says(tmp_path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}") as api:
        with pytest.raises(NoSuchContainer):
            await api.inspect("a/../b")
