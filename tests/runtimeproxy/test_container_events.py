"""GetContainerEvents, the one call of CRI that streams, of a real containerd (Debian 13's: 12's does not serve it).

The same session is held directly and through the proxy: a pod's life told event by event, a stream that its client
cancels and a new one on the same connection, and containerd killed under a stream. Between client, proxy and runtime
are taps, so that answers can be compared byte by byte, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koordlet.api.cri import api_pb2 as cri
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimeproxy.tap import Passed, frames, requests, tap
from tests.runtimeproxy.test_transparency import Conversation, channel_to, fields, text
from tests.runtimes.daemons import running
from tests.runtimes.nri import NRIContainerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

PATIENCE = 60.0
RST_STREAM, CANCEL = 3, bytes([0, 0, 0, 8])
CREATED, STARTED, STOPPED, DELETED = range(4)
LIFE = [
    ("pod", CREATED), ("pod", STARTED), ("container", CREATED), ("container", STARTED),
    ("container", STOPPED), ("container", DELETED), ("pod", STOPPED), ("pod", DELETED),
]  # fmt: skip
Event = tuple[str, int]


class Session:
    """Calls and one event stream on a connection."""

    def __init__(self, channel: grpc.aio.Channel, parent: str) -> None:
        self._call = channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")
        self._talk = Conversation(channel, "v1")
        self._config = sandbox_config(parent, uid="5a1b2c3d-0000-4000-8000-000000000000")
        self._stream: Any = None
        self.ids: dict[str, str] = {}
        self.received: list[Event] = []

    def subscribe(self) -> None:
        self._stream, self.received = self._call(b"", wait_for_ready=True), []

    async def told(self, *events: Event) -> None:
        """Read until each of these events has arrived, in this order."""
        for event in events:
            while not self.received or self.received[-1] != event:
                async with asyncio.timeout(PATIENCE):
                    message = await self._stream.read()
                assert message is not grpc.aio.EOF, await self._stream.code()
                event_fields = dict(fields(message))
                (name,) = [name for name, id in self.ids.items() if id.encode() == event_fields[1]] or [
                    event_fields[1].decode()
                ]
                self.received.append((name, event_fields.get(2, CREATED)))

    async def ask(self, method: str, request: Any) -> bytes:
        answer = await self._talk.ask(method, request)
        assert self._talk.answers[-1][1] == "OK", self._talk.answers[-1]
        return answer

    async def run_pod(self) -> None:
        answer = await self.ask("RunPodSandbox", cri.RunPodSandboxRequest(config=self._config))
        self.ids = {"pod": cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id}

    async def start_container(self) -> None:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=self.ids["pod"], config=container_config(), sandbox_config=self._config
        )
        answer = await self.ask("CreateContainer", request)
        self.ids["container"] = cri.CreateContainerResponse.FromString(answer).container_id
        await self.ask("StartContainer", text(1, self.ids["container"]))

    async def end(self) -> None:
        """Each step after the event of the previous one: an exit is reported by the first observer."""
        await self.ask("StopContainer", text(1, self.ids["container"]))
        await self.told(("container", STOPPED))
        await self.ask("RemoveContainer", text(1, self.ids["container"]))
        await self.told(("container", DELETED))
        await self.ask("StopPodSandbox", text(1, self.ids["pod"]))
        await self.told(("pod", STOPPED))
        await self.ask("RemovePodSandbox", text(1, self.ids["pod"]))
        await self.told(("pod", DELETED))

    async def life(self) -> None:
        """The life of a pod and its container, with all events."""
        self.subscribe()
        await self.run_pod()
        await self.start_container()
        await self.told(*LIFE[:4])
        await self.end()

    async def cancel(self) -> None:
        """Cancel the stream, and wait until the runtime has noticed."""
        self._stream.cancel()
        await self.ask("Version", b"")

    async def broken(self) -> grpc.StatusCode:
        """How the stream ended."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(PATIENCE):
                await self._stream.read()
        return caught.value.code()


async def reconnect(daemon: NRIContainerd) -> None:
    """A process in which no stream was ever cancelled: 1.7 loses the next event to a cancelled one."""
    await asyncio.to_thread(daemon.kill)
    await asyncio.to_thread(daemon.start)


async def hold(daemon: NRIContainerd, socket: Path) -> list[Any]:
    """The whole session at `socket`; returns its observations."""
    async with channel_to(socket) as channel:
        session = Session(channel, daemon.cgroup_parent("same"))
        await session.life()
        shown: list[Any] = [session.received]

        await session.cancel()
        session.subscribe()
        await session.run_pod()  # which loses an event
        await session.start_container()
        await session.told(("container", STARTED))
        await session.end()
        shown.append(session.received[session.received.index(("container", STARTED)) :])

        await asyncio.to_thread(daemon.kill)
        shown.append(await session.broken())
    await asyncio.to_thread(daemon.start)
    async with channel_to(socket) as channel:
        session = Session(channel, daemon.cgroup_parent("same"))
        await session.life()
        shown.append(session.received)
    return shown


def cancels(connection: Passed) -> list[bytes]:
    """The client's frames that end streams early."""
    sent, _ = requests(bytes(connection.up))
    return [message for message in sent if message[3] == RST_STREAM and message[9:] == CANCEL]


@pytest.fixture
def daemon() -> Iterator[NRIContainerd]:
    with running(NRIContainerd()) as server:
        yield server


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    """Its runtime is expected at `tmp_path/behind.sock`."""
    process = ProxyProcess(tmp_path / "behind.sock")
    yield process
    process.close()


async def test_events_are_the_same_through_the_proxy(
    daemon: NRIContainerd, proxy: ProxyProcess, tmp_path: Path
) -> None:
    assert await hold(daemon, daemon.socket) == [LIFE, LIFE[3:], grpc.StatusCode.UNAVAILABLE, LIFE]
    await reconnect(daemon)

    async with tap(proxy.backend, daemon.socket) as behind:
        await asyncio.to_thread(proxy.start)
        async with tap(tmp_path / "before.sock", proxy.socket) as ahead:
            shown = await hold(daemon, tmp_path / "before.sock")
            assert shown == [LIFE, LIFE[3:], grpc.StatusCode.UNAVAILABLE, LIFE]
            passed = [event for event in behind if event.up and b"koord-runtime-proxy" not in event.up]
            await asyncio.to_thread(
                wait_until, lambda: all(event.over for event in [*ahead, *passed]), "connections are over"
            )
            assert len(ahead) == len(passed) == 2
            for client, runtime in zip(ahead, passed, strict=True):
                assert frames(bytes(client.down)) == frames(bytes(runtime.down))
            assert len(cancels(ahead[0])) == 1, "one stream was cancelled by its client"
            assert cancels(passed[0]) == cancels(ahead[0])
    assert proxy.metric("koord_runtime_proxy_malformed_connections_total") == 0
