"""koord-runtime-proxy as a process in front of a real containerd: start, stop, and faults in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient, CriError
from tests.present import present
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

Proxies = Callable[..., ProxyProcess]


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    """Factory of proxies, not started; they are closed with the test."""
    processes: list[ProxyProcess] = []

    def make(backend: Path, *flags: str, folder: Path | None = None) -> ProxyProcess:
        processes.append(ProxyProcess(backend, *flags, folder=folder))
        return processes[-1]

    yield make
    for proxy in processes:
        proxy.close()


async def eventually(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Retries, as a kubelet does while its runtime is down."""
    end = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except CriError as error:
            assert error.lost or error.code is grpc.StatusCode.UNKNOWN, error
            assert time.monotonic() < end, error
        await asyncio.sleep(0.05)


class Creating:
    """Clients that create containers in one pod, each as a kubelet does: after an error it checks which exist."""

    def __init__(self, client: CriClient, sandbox: str, config: Any) -> None:
        self.client, self.sandbox, self.config = client, sandbox, config
        self.answered: list[str] = []
        self.broken = 0
        self.end = time.monotonic() + 100.0
        self.enough = asyncio.Event()

    async def make(self, name: str) -> str:
        while True:
            try:
                created = await self.client.create_container(self.sandbox, container_config(name=name), self.config)
            except CriError as error:  # lost, or containerd has not aborted the earlier attempt yet
                assert time.monotonic() < self.end, error
                self.broken += error.lost
            else:
                self.answered.append(created)
                if len(self.answered) >= 20:
                    self.enough.set()
                return created
            there = [container.id for container in await self.listed() if container.metadata.name == name]
            if there:
                return str(there[0])
            await asyncio.sleep(0.2)

    async def listed(self) -> list[Any]:
        return [
            container
            for container in await eventually(self.client.list_containers)
            if container.pod_sandbox_id == self.sandbox
        ]


async def test_kill_under_two_hundred_creates(containerd: Containerd, proxies: Proxies) -> None:
    """The proxy is killed during calls; nothing is lost, duplicated or leaked."""

    def objects() -> tuple[set[str], set[str]]:
        """Containers and snapshots."""
        snapshots = containerd.ctr("snapshots", "list").stdout.splitlines()[1:]
        return set(containerd.ctr("containers", "list", "--quiet").stdout.split()), {
            snapshot.split()[0] for snapshot in snapshots
        }

    proxy = proxies(containerd.socket)
    proxy.start()
    before = objects()
    async with CriClient(str(proxy.socket)) as client:
        config = sandbox_config(containerd.cgroup_parent(), name="many")
        sandbox = await client.run_pod_sandbox(config)
        creating = Creating(client, sandbox, config)

        async def kill() -> None:
            await creating.enough.wait()
            await asyncio.to_thread(proxy.kill)
            await asyncio.to_thread(proxy.start)

        names: list[Any] = []
        created = []
        while not creating.broken:  # else the machine stalled until all were created
            assert len(names) < 1000, "nothing is under way when the proxy dies"
            creating.enough.clear()
            more = [f"c{len(names) + number}" for number in range(200)]
            names += more
            created += (await asyncio.gather(*map(creating.make, more), kill()))[:-1]
        listed = await creating.listed()
        assert sorted(container.metadata.name for container in listed) == sorted(names)
        assert sorted(container.id for container in listed) == sorted(created)  # type: ignore[type-var]
        assert set(creating.answered) <= set(created)
        expected = before[0] | {sandbox, *created}, before[1] | {sandbox, *created}
        await asyncio.to_thread(wait_until, lambda: objects() == expected, "just these containers and snapshots")
        # the new proxy knows the objects of the old one
        assert proxy.metric('koord_runtime_proxy_recoveries_total{kind="sandbox"}') >= 1
        await client.start_container(present(created[0]))
        await client.stop_container(present(created[0]))
        await client.stop_pod_sandbox(sandbox)
        await client.remove_pod_sandbox(sandbox)
        await asyncio.to_thread(wait_until, lambda: objects() == before, "nothing is left over")


async def test_containerd_restarts(new_containerd: Callable[[], Containerd], proxies: Proxies) -> None:
    containerd = new_containerd()
    proxy = proxies(containerd.socket)
    proxy.start()
    config = sandbox_config(containerd.cgroup_parent())
    async with CriClient(str(proxy.socket)) as client:
        sandbox = await client.run_pod_sandbox(config)
        container = await client.create_container(sandbox, container_config(), config)
        assert proxy.health() == 200
        containerd.kill()
        with pytest.raises(CriError) as failed:
            await client.start_container(container)
        assert failed.value.lost
        assert proxy.health() == 503
        containerd.start()
        await eventually(lambda: client.start_container(container))
        assert proxy.health() == 200
        await client.stop_pod_sandbox(sandbox)
        await client.remove_pod_sandbox(sandbox)
    assert proxy.process is not None
    assert proxy.process.poll() is None


async def test_a_socket_is_left_over(containerd: Containerd, proxies: Proxies) -> None:
    """Left by a killed proxy; and by a running one whose socket another replaces, which removes only its own."""
    first = proxies(containerd.socket)
    first.start()
    first.kill()
    assert first.socket.is_socket()
    first.start()
    assert first.socket.stat().st_mode & 0o777 == 0o660
    second = proxies(containerd.socket, folder=first.socket.parent)
    inode = first.socket.stat().st_ino
    second.start()
    wait_until(lambda: first.socket.exists() and first.socket.stat().st_ino != inode, "the second has the place")
    first.stop()
    async with CriClient(str(second.socket)) as client:
        await client.version()
    second.stop()
    assert not second.socket.exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        with (disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk(full_disk: Path, containerd: Containerd, proxies: Proxies) -> None:
    """No file is written: the state is the runtime's."""
    proxy = proxies(containerd.socket, folder=full_disk)
    proxy.start()
    config = sandbox_config(containerd.cgroup_parent())
    async with CriClient(str(proxy.socket)) as client:
        sandbox = await client.run_pod_sandbox(config)
        container = await client.create_container(sandbox, container_config(), config)
        await client.start_container(container)
        proxy.kill()
        proxy.start()
        await eventually(lambda: client.stop_container(container))
        await client.stop_pod_sandbox(sandbox)
    proxy.stop()
    assert os.listdir(full_disk) == ["full"]  # noqa: PTH208


def test_no_runtime(tmp_path: Path, proxies: Proxies) -> None:
    proxy = proxies(tmp_path / "no.sock", "--backend-timeout=1500ms")
    done = proxy.run()
    assert done.returncode == 1
    assert "no response from" in done.stderr
    assert "Waiting for the runtime" in done.stderr


def test_no_place_for_the_socket(tmp_path: Path, proxies: Proxies) -> None:
    proxy = proxies(tmp_path / "no.sock", folder=tmp_path)
    proxy.socket.mkdir()
    done = proxy.run()
    assert done.returncode == 1
    assert "Is a directory" in done.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--backend-runtime-mode=containerd", "must be one of Containerd, Docker"),
        ("--metrics-addr=nonsense", "must be host:port"),
        ("--koord-runtimeproxy-endpoint=here", "absolute path"),
        ("--no-such-flag", "no-such-flag"),
    ],
)
def test_bad_command_lines(tmp_path: Path, proxies: Proxies, flag: str, message: str) -> None:
    done = proxies(tmp_path / "no.sock", flag).run()
    assert done.returncode == 2
    assert message in done.stderr


async def test_waits_for_the_runtime(tmp_path: Path, containerd: Containerd, proxies: Proxies) -> None:
    """Also behind a link that appears later, with a supervisor that waits for a notification, and old flags."""
    supervisor = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as environment, pytest.MonkeyPatch.context() as patch:
        environment.bind(str(supervisor))
        environment.settimeout(60)
        patch.setenv("NOTIFY_SOCKET", str(supervisor))
        later = tmp_path / "later.sock"
        proxy = proxies(later, "--remote-image-service-endpoint=/run/whatever.sock", "--v=5")
        starting = asyncio.create_task(asyncio.to_thread(proxy.start))
        await asyncio.to_thread(wait_until, lambda: "Waiting for the runtime" in _log(proxy), "it waits")
        assert not proxy.socket.exists()
        later.symlink_to(containerd.socket)
        await starting
        assert await asyncio.to_thread(environment.recv, 100) == b"READY=1"
        async with CriClient(str(proxy.socket)) as client:
            assert (await client.version()).runtime_name == "containerd"
        await asyncio.to_thread(proxy.stop)
        assert environment.recv(100) == b"STOPPING=1"


def _log(proxy: ProxyProcess) -> str:
    return proxy.log.read_text() if proxy.log.exists() else ""


@pytest.mark.parametrize("patient", [True, False])
async def test_a_stop_waits_for_running_calls(containerd: Containerd, proxies: Proxies, patient: bool) -> None:
    proxy = proxies(containerd.socket, f"--stop-timeout={'60s' if patient else '100ms'}")
    proxy.start()
    config = sandbox_config(containerd.cgroup_parent())
    async with CriClient(str(proxy.socket)) as client, CriClient(str(containerd.socket)) as direct:
        sandbox = await client.run_pod_sandbox(config)
        container = await client.create_container(sandbox, container_config(), config)
        await client.start_container(container)
        script = "touch /begun; while [ ! -e /go ]; do sleep 0.05; done; echo done"
        call = asyncio.create_task(client.exec_sync(container, ["/bin/sh", "-c", script]))
        await direct.exec_sync(container, ["/bin/sh", "-c", "until [ -e /begun ]; do sleep 0.05; done"])
        assert proxy.process is not None
        proxy.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: not proxy.socket.exists(), "it takes no more clients")
        if patient:
            await direct.exec_sync(container, ["/bin/touch", "/go"])
            assert (await call).stdout == b"done\n"
            await client.close()  # this kind of client keeps its connection
        else:
            with pytest.raises(CriError) as failed:
                await call
            assert failed.value.lost
            await direct.exec_sync(container, ["/bin/touch", "/go"])
        assert await asyncio.to_thread(proxy.ended) == 0


async def test_a_hook_that_must_answer_and_does_not(containerd: Containerd, proxies: Proxies) -> None:
    proxy = proxies(containerd.socket)
    proxy.hooks.mkdir()
    server = {"remote-endpoint": "/no/such.sock", "runtime-hooks": ["PreRunPodSandbox"]}

    def register(policy: str) -> None:
        (proxy.hooks / "dead.json").write_text(json.dumps({**server, "failure-policy": policy}))

    register("Fail")
    proxy.start()
    parent = containerd.cgroup_parent()
    async with CriClient(str(proxy.socket)) as client, CriClient(str(containerd.socket)) as direct:
        for _ in range(3):
            with pytest.raises(CriError) as failed:
                await client.run_pod_sandbox(sandbox_config(parent))
            assert failed.value.code is grpc.StatusCode.UNKNOWN
            assert failed.value.details.startswith("hook server err: ")
        assert await direct.list_pod_sandbox() == []
        skipped = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
        await client.run_pod_sandbox(sandbox_config(parent, name="skipped", labels=skipped))
        register("Ignore")
        await client.run_pod_sandbox(sandbox_config(parent))
        assert len(await direct.list_pod_sandbox()) == 2
    assert proxy.metric('koord_runtime_proxy_calls_total{method="RunPodSandbox",result="refused"}') == 3


async def test_pages(containerd: Containerd, proxies: Proxies) -> None:
    proxy = proxies(containerd.socket)
    proxy.start()
    config = sandbox_config(containerd.cgroup_parent())
    async with CriClient(str(proxy.socket)) as client:
        sandbox = await client.run_pod_sandbox(config)
        with pytest.raises(CriError):
            await client.start_container("no-such-container")
        assert proxy.metric('koord_runtime_proxy_calls_total{method="RunPodSandbox",result="passed"}') == 1
        assert proxy.metric('koord_runtime_proxy_calls_total{method="StartContainer",result="failed"}') == 1
        # The proxy notices a little later that the connection which waited for its start is closed.
        await asyncio.to_thread(
            wait_until, lambda: proxy.metric("koord_runtime_proxy_connections") == 1, "only the client is connected"
        )
        await client.stop_pod_sandbox(sandbox)
    wait_until(lambda: not proxy.metric("koord_runtime_proxy_connections"), "the client has gone")
