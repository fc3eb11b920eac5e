"""koord-runtime-proxy in Docker mode under faults: the proxy is killed during two hundred creations, dockerd with
running containers, and clients have streams when the proxy stops."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import socket
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from koordlet.runtimehooks.stages import HookStage
from tests.runtimeproxy.docker.conftest import UID
from tests.runtimeproxy.docker.livedocker import PATIENCE, SHARES, Cli, Proxy, Recorder, Shim, koordlet, name_of
from tests.runtimes.daemons import Dockerd
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

PODS, CREATIONS = 10, 200
OUT_OF_REACH = "koord-runtime-proxy: cannot connect to dockerd: "


@pytest.fixture
def proxies() -> Iterator[Callable[..., Proxy]]:
    """Factory of started proxies; they are closed with the test."""
    proxies: list[Proxy] = []

    def make(backend: Path, *flags: str) -> Proxy:
        proxies.append(Proxy(backend))
        proxies[-1].flags = (*proxies[-1].flags, *flags)
        proxies[-1].start()
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.kill()
        assert "Traceback" not in proxy.log.read_text()
        proxy.close()


class Lost(Exception):
    """The connection ended without a complete response, or there was none."""


async def ask(path: Path, line: str, body: Any = None) -> tuple[int, Any]:
    """Status and content of the response to one call, on a new connection. Raises Lost."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{line} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError as error:
        raise Lost(str(error)) from error
    try:
        writer.write(head.encode() + data)
        answer = await reader.read()
    except OSError as error:
        raise Lost(str(error)) from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    start, _, content = answer.partition(b"\r\n\r\n")
    try:
        return int(start.split(b" ")[1]), json.loads(content or b"null")
    except (IndexError, ValueError) as error:
        raise Lost(f"{answer!r}") from error


# The proxy


class Creating:
    """Clients that create containers, each as dockershim does: after an error it checks which exist."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.answered: list[str] = []
        self.broken = 0
        self.end = time.monotonic() + 100.0
        self.enough = asyncio.Event()

    async def make(self, name: str, labels: dict[str, str]) -> str:
        host = {"NetworkMode": "none", "CpuShares": 300}
        body = {"Image": "busybox", "Cmd": ["sleep", "1000"], "Labels": labels, "HostConfig": host}
        while True:
            try:
                status, answer = await ask(self.proxy.socket, f"POST /containers/create?name={name}", body)
            except Lost:
                self.broken += 1
            else:
                if status == 201:
                    self.answered.append(answer["Id"])
                    if len(self.answered) >= 20:
                        self.enough.set()
                    return str(answer["Id"])
                assert status == 409, answer  # dockerd is still at the earlier attempt, or done with it
            container = await self.find(name)
            if container is not None:
                return container
            await asyncio.sleep(0.2)

    async def find(self, name: str) -> str | None:
        listed = await self.until_answered(f"GET /containers/json?all=1&filters={quote(json.dumps({'name': [name]}))}")
        assert len(listed) <= 1, listed
        return str(listed[0]["Id"]) if listed else None

    async def until_answered(self, line: str, body: Any = None) -> Any:
        """The content of a successful response."""
        while True:
            try:
                status, answer = await ask(self.proxy.socket, line, body)
            except Lost as error:
                assert time.monotonic() < self.end, error
                await asyncio.sleep(0.05)
            else:
                assert status < 300, answer
                return answer


def kept(dockerd: Dockerd) -> tuple[set[str], set[str]]:
    """Containers with folders, and with file systems."""
    data = dockerd.root / "data"
    return {entry.name for entry in (data / "containers").iterdir()}, {
        mount.name for mount in data.glob("image/*/layerdb/mounts/*")
    }


async def test_kill_under_two_hundred_creates(dockerd: Dockerd, proxies: Callable[..., Proxy], tmp_path: Path) -> None:
    """The proxy is killed during calls; nothing is lost, duplicated or leaked, and hook requests have the right
    pods."""
    proxy = proxies(dockerd.socket)
    creating = Creating(proxy)
    uids = {f"web-{number}": f"{UID[:-2]}{number:02}" for number in range(PODS)}
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        sandboxes = {
            pod: await creating.make(name_of("POD", pod, uid=uid), {"io.kubernetes.docker.type": "podsandbox"})
            for pod, uid in uids.items()
        }

        async def kill() -> None:
            await creating.enough.wait()
            await asyncio.to_thread(proxy.kill)
            await asyncio.to_thread(proxy.start)

        containers: dict[tuple[str, str], str] = {}

        async def make(pod: str, name: str) -> None:
            labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandboxes[pod]}
            containers[pod, name] = await creating.make(name_of(name, pod, uid=uids[pod]), labels)

        requested: list[tuple[str, str]] = []
        while not creating.broken:  # else the machine stalled until all were created
            assert len(requested) < 5 * CREATIONS, "nothing is under way when the proxy dies"
            creating.enough.clear()
            creating.answered.clear()
            more = [(f"web-{index % PODS}", f"c{index}") for index in range(len(requested), len(requested) + CREATIONS)]
            requested += more
            await asyncio.gather(*(make(*container_name) for container_name in more), kill())

        listed = await creating.until_answered("GET /containers/json?all=1")
        ids = {*sandboxes.values(), *containers.values()}
        assert sorted(listed_container["Id"] for listed_container in listed) == sorted(ids) and len(ids) == PODS + len(
            requested
        )
        assert {listed_container["Names"][0] for listed_container in listed} == {
            *(f"/{name_of('POD', pod, uid=uid)}" for pod, uid in uids.items()),
            *(f"/{name_of(name, pod, uid=uids[pod])}" for pod, name in requested),
        }
        assert set(creating.answered) <= ids
        assert kept(dockerd) == (ids, ids)
        created = {(f"shop/{pod}", uids[pod], name) for pod, name in requested}
        assert {call[1:] for call in recorder.calls if call[0] is HookStage.PRE_CREATE_CONTAINER} == created

        recorder.calls.clear()  # the new proxy knows containers of the old one, and those created after its end
        turns = asyncio.Semaphore(8)

        async def update(container: str) -> None:
            async with turns:
                await creating.until_answered(f"POST /containers/{container}/update", {"CpuShares": 400})

        await asyncio.gather(*map(update, containers.values()))
        assert sorted(recorder.calls) == sorted(
            (HookStage.PRE_UPDATE_CONTAINER_RESOURCES, *container_name) for container_name in created
        )

    async def remove(container: str) -> None:
        async with turns:
            await creating.until_answered(f"DELETE /containers/{container}?force=1")

    (proxy.hooks / "koordlet.json").unlink()
    await asyncio.gather(*map(remove, ids))
    assert kept(dockerd) == (set(), set())
    assert await creating.until_answered("GET /containers/json?all=1") == []


# dockerd


@pytest.mark.parametrize(
    ("live", "killed"),
    [
        pytest.param(True, True, id="live-restore-kill"),
        pytest.param(True, False, id="live-restore-stop"),
        pytest.param(False, False, id="stop"),
    ],
)
def test_dockerd_restarts(
    new_dockerd: Callable[..., Dockerd], proxies: Callable[..., Proxy], tmp_path: Path, live: bool, killed: bool
) -> None:
    dockerd = new_dockerd(live_restore=live)
    proxy = proxies(dockerd.socket)
    docker = Cli(dockerd, proxy.socket)
    pid = proxy.pid
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        pod = Shim(docker, dockerd.cgroup_parent("pod"), "web-0", "LS", flags=("--stop-signal=KILL",))
        app = pod.create("app", "--cpu-shares=300")
        assert pod.first_look(app)[SHARES] == "300"
        assert proxy.health() == 200
        following = docker.begin("logs", "-f", app)

        (dockerd.kill if killed else dockerd.stop)()
        following.communicate(timeout=PATIENCE)  # it ends
        status, out, err = docker("ps")
        assert (status, out) == (1, b"") and OUT_OF_REACH.encode() in err
        refused = asyncio.run(ask(proxy.socket, f"POST /containers/create?name={name_of('late', 'web-0')}", {}))
        assert refused[0] == 503 and refused[1]["message"].startswith(OUT_OF_REACH)
        assert proxy.health() == 503

        dockerd.start()
        assert proxy.health() == 200 and proxy.pid == pid
        assert (docker.said("inspect", "--format={{.State.Running}}", app) == "true") is live
        goes_on(recorder, pod, app, live, "second")
        wait_until(lambda: not proxy.metric("koord_runtime_proxy_connections"), "connections of before have ended")

        proxy.kill()
        proxy.start()
        assert proxy.metric('koord_runtime_proxy_recoveries_total{kind="sandbox"}') == 1
        assert proxy.metric('koord_runtime_proxy_recoveries_total{kind="container"}') == 2
        goes_on(recorder, pod, app, True, "third")


def goes_on(recorder: Recorder, pod: Shim, app: str, running: bool, new: str) -> None:
    """Hooks run for an existing container, and for a new one of its pod. `running`: whether it is; it is afterwards."""
    recorder.calls.clear()
    pod.docker.said("update", "--cpu-shares=400", app)
    calls = [(HookStage.PRE_UPDATE_CONTAINER_RESOURCES, "app")]
    if not running:
        pod.docker.said("start", app)
        calls += [(HookStage.PRE_START_CONTAINER, "app"), (HookStage.POST_START_CONTAINER, "app")]
    wait_until(lambda: len(recorder.calls) == len(calls), "after hooks")
    assert pod.now(app, SHARES) == "400"
    pod.create(new)
    calls.append((HookStage.PRE_CREATE_CONTAINER, new))
    assert recorder.calls == [(stage, "shop/web-0", UID, name) for stage, name in calls]


def test_dockerd_comes_back_with_another_cgroup_driver(
    new_dockerd: Callable[..., Dockerd], proxies: Callable[..., Proxy], tmp_path: Path
) -> None:
    """Hook requests for existing and new containers use the present driver's paths."""
    dockerd = new_dockerd()
    proxy = proxies(dockerd.socket)
    docker = Cli(dockerd, proxy.socket)
    parent, path = "koord-test-pod.slice", "koord.slice/koord-test.slice/koord-test-pod.slice"

    def create(pod: str, *flags: str) -> str:
        """A sandbox and its container, neither started; returns the container's id."""
        plain = ("--network=none", f"--cgroup-parent={parent}")
        sandbox = docker.said(
            "create", "--name", name_of("POD", pod), *plain, "--label=io.kubernetes.docker.type=podsandbox", "busybox"
        )
        labels = ("--label=io.kubernetes.docker.type=container", f"--label=io.kubernetes.sandbox.id={sandbox}")
        return docker.said("create", "--name", name_of("app", pod), *plain, *labels, "busybox")

    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        old = create("web-0")
        assert recorder.folders == [parent] * 2
        dockerd.stop()
        dockerd.driver = "systemd"
        dockerd.start()
        recorder.folders.clear()
        docker.said("update", "--cpu-shares=400", old)
        new = create("web-1")
        assert recorder.folders == [path] * 3
        assert [dockerd.inspect(driver)["HostConfig"]["CgroupParent"] for driver in (old, new)] == [parent] * 2


# Streams


def streams(docker: Cli) -> dict[str, subprocess.Popen[bytes]]:
    """One stream of each kind, running, on a container that writes a line per second."""
    talk = "while echo ready; do sleep 1; done"
    docker.said("run", "-d", "--network=none", "--name=talks", "busybox", "sh", "-c", talk)
    begun = {
        "attach": docker.begin("attach", "talks"),
        "exec": docker.begin("exec", "-i", "talks", "sh", "-c", "echo ready; cat"),
        "logs": docker.begin("logs", "-f", "talks"),
        "events": docker.begin("events", "--since=1", "--filter=container=talks", "--filter=event=start"),
    }
    for name, process in begun.items():
        assert process.stdout is not None and process.stdout.readline(), name
    return begun


def ends(begun: dict[str, subprocess.Popen[bytes]], host: Path) -> dict[str, tuple[int, str]]:
    """How each ended: status and output. `host`: its socket."""
    ends = {}
    for name, process in begun.items():
        wait_until(lambda process=process: process.poll() is not None, f"docker {name} ends")  # type: ignore[misc]
        _, err = process.communicate(timeout=PATIENCE)
        ends[name] = process.returncode, err.decode().replace(quote(str(host), safe=""), "SOCKET")
    return ends


@contextlib.contextmanager
def upload(path: Path, dockerd: Dockerd) -> Iterator[socket.socket]:
    """An upload of half an image, which has been read completely. `docker load` would show its state at the end of the
    connection: writing, or waiting for input."""
    image = (dockerd.root / "images.tar").read_bytes()
    head = b"POST /images/load HTTP/1.1\r\nHost: docker\r\nContent-Type: application/x-tar\r\n"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(image) + image[: len(image) // 2])
        wait_until(lambda: not any(fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4))), "it has been read")
        yield client


def rest(client: socket.socket) -> bytes:
    """The remaining bytes. Raises OSError."""
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    return data


def test_streams_end_with_the_proxy_as_they_do_with_dockerd(
    new_dockerd: Callable[..., Dockerd], proxies: Callable[..., Proxy]
) -> None:
    dockerd = new_dockerd()
    proxy = proxies(dockerd.socket, "--stop-timeout=1s")
    begun = streams(Cli(dockerd, proxy.socket))
    with upload(proxy.socket, dockerd) as half:
        assert proxy.finish() == 0
        with_proxy = ends(begun, proxy.socket)
        assert rest(half) == b""
    dockerd.docker("rm", "-f", "talks")
    begun = streams(Cli(dockerd, dockerd.socket))
    with upload(dockerd.socket, dockerd) as half:
        dockerd.stop()
        assert with_proxy == ends(begun, dockerd.socket)
        assert rest(half) == b""
    assert with_proxy["logs"] == (1, "unexpected EOF\n")  # it is an end in the middle
