"""Docker mode with real sockets, on asyncio's loop and on uvloop, with a fake dockerd."""

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
from runtimeproxy.docker.api import DockerApi, DockerError, NoSuchContainer
from runtimeproxy.docker.server import DockerServer, serve_docker
from runtimeproxy.hooks.dispatch import HookOutcome
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.stages import Hook, HookFailurePolicy, HookRequest
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore
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
MISSING = b'{"message":"koord-runtime-proxy: cannot connect to dockerd: No such file or directory"}\n'
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
    """A dockerd that serves the proxy's own requests, and passes every other connection to `handle`."""

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
    store, path = ProxyStore(), folder / "p.sock"
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


def test_a_client_that_leaves_a_stream_closes_dockerds_side(run: Callable[[Test], None]) -> None:
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
        hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = HookOutcome(None, HookFailurePolicy.FAIL, "no")
        async with front(folder, dockerd, hooks) as (path, _):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET /one HTTP/1.1\r\n\r\n" + CREATE + b"GET /two HTTP/1.1\r\nConnection: close\r\n\r\n")
            answer = await reader.readuntil(b"/two")
            assert [answer.find(marker) for marker in (b"/one", b"hook server err: no", b"/two")] == sorted(
                answer.find(marker) for marker in (b"/one", b"hook server err: no", b"/two")
            )
            assert answer.count(b"HTTP/1.1 200 OK") == 2 and answer.count(b"HTTP/1.1 500 ") == 1
            await ended(writer)

    run(test)


def test_a_client_that_leaves_cancels_its_hook(run: Callable[[Test], None]) -> None:
    async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("must not be asked")

    async def test(folder: Path) -> None:
        called, cancelled = asyncio.Event(), asyncio.Event()

        class Slow(Hooks):
            async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
                called.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
                raise AssertionError

        async with front(folder, dockerd, Slow()) as (path, proxy):
            _, writer = await asyncio.open_unix_connection(str(path))
            writer.write(CREATE)
            await called.wait()
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
        received = 0

        async def dockerd() -> None:
            """Reads nothing until released."""
            nonlocal received
            connection, _ = await loop.sock_accept(listener)
            await read.wait()
            with connection:
                while received < len(data) and (piece := await loop.sock_recv(connection, MIB)):
                    received += len(piece)
                await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        serving = asyncio.create_task(dockerd())
        nothing = staticmethod(_nothing)
        context: Any = type("Nobody", (), {"metrics": ProxyMetrics.of(), "finish": nothing, "close": nothing})()
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
            assert total < 24 * MIB, "an upload that is not read must not be kept in memory"
            read.set()
            await loop.sock_sendall(raw, data[total:])
            assert (await loop.sock_recv(raw, 1000)).startswith(b"HTTP/1.1 200 OK")
            await serving
            assert received == len(data)
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
            idle, idle_writer = await asyncio.open_unix_connection(str(path))
            await settled(lambda: len(proxy.links) == 3)
            stop = asyncio.create_task(proxy.stop(PATIENCE))
            assert await idle.read() == b""  # immediately: it may not begin anything more
            call_writer.write(b"GET /info HTTP/1.1\r\nHost: docker\r\n\r\n")  # nor this one, behind its answer
            await asyncio.sleep(0.02)
            stopping.set()
            assert await call.read() == b"HTTP/1.1 204 No Content\r\n\r\n"
            assert await stream.read() == b""
            await stop
            assert not proxy.links
            for writer in (stream_writer, idle_writer):
                await ended(writer)
            call_writer.transport.abort()

    run(test)


def test_a_stop_waits_for_a_slow_readers_response(run: Callable[[Test], None]) -> None:
    size = 8 * MIB

    async def test(folder: Path) -> None:
        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

        async with front(folder, dockerd) as (path, proxy):
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                client.connect(str(path))
                await loop.sock_sendall(client, b"GET /images/json HTTP/1.1\r\nHost: docker\r\n\r\n")
                await settled(lambda: any(link.busy for link in proxy.links))
                stop = asyncio.create_task(proxy.stop(PATIENCE))
                received = b""
                while piece := await loop.sock_recv(client, MIB):
                    received += piece
                await stop
            assert len(received.partition(b"\r\n\r\n")[2]) == size

    run(test)


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        pytest.param([CREATE], MISSING, id="call"),
        pytest.param([CREATE[:9], CREATE[9:]], MISSING, id="torn"),
        pytest.param([b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"], b"", id="head"),
        pytest.param([b"no HTTP\r\n\r\n"], MISSING, id="garbage"),
    ],
)
def test_a_client_gets_the_reason_without_dockerd(
    run: Callable[[Test], None], pieces: list[bytes], body: bytes
) -> None:
    async def test(folder: Path) -> None:
        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

        async with front(folder, dockerd) as (path, proxy):
            (folder / "d.sock").unlink()
            reader, writer = await asyncio.open_unix_connection(str(path))
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.02)
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"Connection: close" in head
            assert content == body
            await settled(lambda: not proxy.links)
            writer.transport.abort()  # later bytes may not have been read

    run(test)


def test_a_client_that_continues_to_write_reads_the_503(run: Callable[[Test], None]) -> None:
    """Not a reset: the client would not know the reason."""

    async def test(folder: Path) -> None:
        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

        async with front(folder, dockerd) as (path, proxy):
            (folder / "d.sock").unlink()
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                client.connect(str(path))
                head = b"POST /images/load HTTP/1.1\r\nHost: docker\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
                await loop.sock_sendall(client, head + bytes(8 * MIB))
                received = b""
                while piece := await loop.sock_recv(client, MIB):
                    received += piece
            assert received.startswith(b"HTTP/1.1 503 ") and received.endswith(MISSING)
            await settled(lambda: not proxy.links)

    run(test)


def test_a_silent_client_delays_no_other_while_dockerd_is_down(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

        async with front(folder, dockerd) as (path, proxy):
            (folder / "d.sock").unlink()
            left, left_writer = await asyncio.open_unix_connection(str(path))
            half, half_writer = await asyncio.open_unix_connection(str(path))
            stays, stays_writer = await asyncio.open_unix_connection(str(path))
            await settled(lambda: len(proxy.links) == 3)
            half_writer.write(CREATE[:9])
            half_writer.write_eof()
            assert await half.read() == b""  # its request never comes whole
            await ended(left_writer)
            await settled(lambda: len(proxy.links) == 1)
            await proxy.stop(PATIENCE)
            assert await stays.read() == b"" and left.at_eof() is not None
            for writer in (half_writer, stays_writer):
                await ended(writer)

    run(test)


# Held requests


def huge(size: int) -> bytes:
    """A sandbox's creation with a body of `size` bytes."""
    plain = json.dumps({**sandbox_body(), "Cmd": [""]}).encode()
    body = plain.replace(b'"Cmd": [""]', b'"Cmd": ["%s"]' % (b"x" * (size - len(plain))))
    assert len(body) == size
    return CREATE.partition(b"\r\n\r\n")[0].replace(b"%d" % len(BODY), b"%d" % size) + b"\r\n\r\n" + body


@pytest.mark.parametrize(("size", "held"), [(15 * MIB, True), (17 * MIB, False)], ids=["15 MiB", "17 MiB"])
def test_bodies_of_the_largest_size(run: Callable[[Test], None], size: int, held: bool) -> None:
    async def test(folder: Path) -> None:
        received: list[bytes] = []

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await read_request(reader))
            writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n{"Id":"1"}')

        hooks = Hooks()
        hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = PodSandboxHookResponse(labels={"new": "1"})
        request = huge(size)
        async with front(folder, dockerd, hooks) as (path, proxy):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(request)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 201 Created")
            await ended(writer)
            assert proxy._budget.held == 0
        body = json.loads(received[0].partition(b"\r\n\r\n")[2])
        assert body["Labels"] == {**sandbox_body()["Labels"], **({"new": "1"} if held else {})}
        assert len(body["Cmd"][0]) > size - 2000
        assert (received[0] == request) is not held

    run(test)


def test_held_bytes_of_all_clients_are_bounded(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        received: list[bytes] = []
        called = asyncio.Event()

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await read_request(reader))
            writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n{"Id":"1"}')

        class Slow(Hooks):
            async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
                await called.wait()
                return HookOutcome(PodSandboxHookResponse(labels={"new": "1"}))

        async with front(folder, dockerd, Slow()) as (path, proxy):
            proxy._budget.limit = 2 * len(CREATE) + 1
            clients = [await asyncio.open_unix_connection(str(path)) for _ in range(3)]
            for number, (_, writer) in enumerate(clients, 1):
                writer.write(CREATE)
                await settled(lambda least=number: proxy._budget.held // len(CREATE) + len(received) >= least)  # type: ignore[misc]
            assert received == [CREATE]  # the third was forwarded unchanged
            called.set()
            for reader, writer in clients:
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 201 Created")
                await ended(writer)
            assert (
                len(received) == 3 and proxy._budget.held == 0 and sum(b'"new"' in answer for answer in received) == 2
            )

    run(test)


def test_the_life_of_a_sandbox(run: Callable[[Test], None]) -> None:
    async def test(folder: Path) -> None:
        received: list[bytes] = []

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await read_request(reader))
            writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 8\r\n\r\n{"Id":1}')

        hooks = Hooks()
        hooks.answers[Hook.PRE_RUN_POD_SANDBOX] = PodSandboxHookResponse(labels={"new": "1"})
        async with front(folder, dockerd, hooks) as (path, _):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(CREATE)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 201 Created")
            await ended(writer)
        body = json.loads(received[0].partition(b"\r\n\r\n")[2])
        assert body["Labels"] == {**sandbox_body()["Labels"], "new": "1"}

    run(test)


# The proxy's own requests


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
    api = DockerApi(folder / "d.sock", timeout=PATIENCE)
    yield api
    await api.close()
    server.close()
    await server.wait_closed()


async def test_requests_share_a_connection_only_when_pooled(tmp_path: Path) -> None:
    connections: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths: list[bytes] = []
        connections.append(paths)
        while head := await reader.read(1000):  # a request arrives in one write
            paths.append(head.split(b" ")[1])
            last = paths[-1] == b"/containers/two/json"
            body = b'{"Id":"x","Name":"n","Config":{}}'
            close = b"Connection: close\r\n" if last else b""
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), close, body))
            if last:
                break
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "d.sock"))
    api = DockerApi(tmp_path / "d.sock", timeout=PATIENCE)
    async with api.pooled():
        for name in ("one", "two", "three", "four"):
            await api.inspect(name)
    await api.inspect("five")
    server.close()
    await server.wait_closed()
    names = [[path.split(b"/")[2].decode() for path in paths] for paths in connections]
    assert names == [["one", "two"], ["three", "four"], ["five"]]


def test_a_restart_of_dockerd_is_detected(run: Callable[[Test], None]) -> None:
    """Also if its socket file stays, as systemd's does."""

    async def test(folder: Path) -> None:
        writers: list[asyncio.StreamWriter] = []
        close = b""

        async def dockerd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            body = b'{"CgroupDriver":"driver %d"}' % len(writers)
            writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (close, len(body), body))

        server = await asyncio.start_unix_server(dockerd, str(folder / "d.sock"))
        api = DockerApi(folder / "d.sock", timeout=PATIENCE)
        assert api.restarted  # no daemon was queried
        assert (await api.info()).cgroup_driver == "driver 1" and not api.restarted
        writers[0].close()
        await settled(lambda: api.restarted)
        assert (await api.info()).cgroup_driver == "driver 2" and not api.restarted
        writers[1].transport.abort()
        await settled(lambda: api.restarted)
        close = b"Connection: close\r\n"
        assert (await api.info()).cgroup_driver == "driver 3" and api.restarted  # unknown
        close = b""
        await api.info()
        await api.close()
        assert api.restarted
        for writer in writers:
            await ended(writer)
        server.close()
        await server.wait_closed()

    run(test)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(b"HTTP/1.1 500 Oh\r\nContent-Length: 16\r\n\r\n{\"message\":\"no\"}", "500 no", id="error"),
        pytest.param(b"HTTP/1.1 502 Oh\r\nContent-Length: 2\r\n\r\nno", "502 no", id="error-in-text"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "in the middle", id="torn"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "/info", id="other-kind"),
        pytest.param(b"SSH-2.0\r\n\r\n", "SSH", id="garbage"),
        pytest.param(b"", "in the middle", id="nothing"),
    ],
)  # fmt: skip
async def test_invalid_responses_are_refused(tmp_path: Path, answer: bytes, message: str) -> None:
    async with says(tmp_path, answer) as api:
        with pytest.raises(DockerError, match=message):
            await api.info()
        assert api.restarted


async def test_no_response_times_out(tmp_path: Path) -> None:
    with pytest.raises(DockerError, match=r"d\.sock"):
        await DockerApi(tmp_path / "d.sock").info()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "d.sock"))
        silent.listen()
        with pytest.raises(DockerError, match=r"no response in 0\.05 s"):
            await DockerApi(tmp_path / "d.sock", timeout=0.05).info()


async def test_a_container_that_is_not_there(tmp_path: Path) -> None:
    async with says(tmp_path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}") as api:
        with pytest.raises(NoSuchContainer):
            await api.inspect("a/../b")
