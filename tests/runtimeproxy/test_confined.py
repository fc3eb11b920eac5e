"""The proxy works under the limits of its unit."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient
from koordlet.api.hooks import api_pb2, api_pb2_grpc
from tests.ports import free_port
from tests.runtimeproxy import unitfiles
from tests.runtimeproxy.confine import command
from tests.runtimes.daemons import Containerd, Dockerd
from tests.runtimes.pods import container_config, sandbox_config

pytestmark = pytest.mark.runtime

PATIENCE = 100.0
FORBIDDEN = """
import errno, mmap, os, socket, sys
def refused(number, do):
    try:
        do()
    except OSError as error:
        assert error.errno == number, error
    else:
        sys.exit(f"{do} was allowed")
refused(errno.EROFS, lambda: open("/etc/koord-was-here", "w"))
refused(errno.EROFS, lambda: os.mkdir("/var/koord-was-here"))
refused(errno.EAFNOSUPPORT, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
refused(errno.EPERM, lambda: os.setuid(1))
refused(errno.EPERM, lambda: os.sched_setaffinity(0, {0}))
refused(errno.EPERM, lambda: os.chroot("/"))
refused(errno.EPERM, lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
refused(errno.ENOENT, lambda: open("/proc/meminfo"))
open(sys.argv[1] + "/own", "w").close()
"""


class Hooks(api_pb2_grpc.RuntimeHookServiceServicer):
    """Wants other shares for every container."""

    def PreCreateContainerHook(self, request: Any, context: Any) -> Any:
        answer = api_pb2.ContainerResourceHookResponse(container_resources=request.container_resources)
        answer.container_resources.cpu_shares = 777
        return answer


@pytest.fixture
def registrations(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "hookserver.d"
    folder.mkdir()
    server = grpc.server(ThreadPoolExecutor(1))
    api_pb2_grpc.add_RuntimeHookServiceServicer_to_server(Hooks(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{tmp_path / 'hooks.sock'}")
    server.start()
    registration = {"remote-endpoint": str(tmp_path / "hooks.sock"), "failure-policy": "Fail"}
    (folder / "hooks.json").write_text(json.dumps({**registration, "runtime-hooks": ["PreCreateContainer"]}))
    yield folder
    server.stop(None).wait()


@pytest.mark.parametrize("unit", [unitfiles.text(backend) for backend in unitfiles.BACKENDS], ids=unitfiles.BACKENDS)
def test_the_units_restrictions_are_enforced(tmp_path: Path, unit: str) -> None:
    """Or the tests below would show nothing."""
    program = [sys.executable, "-c", FORBIDDEN, str(tmp_path)]
    done = subprocess.run(command(unit, [tmp_path], program), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own").exists()


class Confined:
    """A proxy under the limits of its unit, from READY=1 until it has ended by itself."""

    def __init__(self, backend: str, runtime: Path, registrations: Path, folder: Path) -> None:
        unit = unitfiles.text(backend)
        self._folder, self._log, own, self.port = folder, folder / "log", folder / "run", free_port()
        own.mkdir()
        self.socket = own / "runtimeproxy.sock"
        program = [
            sys.executable, "-m", "runtimeproxy", f"--backend-runtime-mode={backend.capitalize()}",
            f"--koord-runtimeproxy-endpoint={self.socket}", f"--remote-runtime-service-endpoint={runtime}",
            f"--hook-server-dir={registrations}", "--hook-timeout=100s", f"--metrics-addr=127.0.0.1:{self.port}",
        ]  # fmt: skip
        self._command = ["env", f"NOTIFY_SOCKET={folder / 'notify'}", *command(unit, [own, registrations], program)]

    def __enter__(self) -> Confined:
        self._supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._supervisor.bind(str(self._folder / "notify"))
        self._supervisor.settimeout(PATIENCE)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        try:
            assert self._supervisor.recv(100) == b"READY=1"
            status = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            assert {"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} <= set(status)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._process.send_signal(signal.SIGTERM)
                assert self._process.wait(PATIENCE) == 0
                assert self._supervisor.recv(100) == b"STOPPING=1"
                assert not self.socket.exists()
                assert "Operation not permitted" not in self._log.read_text()
        finally:
            self._end()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._supervisor.close()
        sys.stderr.write(self._log.read_text())


def test_it_calls_hooks_and_serves_in_front_of_containerd(
    containerd: Containerd, registrations: Path, tmp_path: Path
) -> None:
    with Confined("containerd", containerd.socket, registrations, tmp_path) as proxy:
        assert asyncio.run(_shares_of_a_container(proxy.socket, containerd.cgroup_parent())) == "777"
        assert "ok" in proxy.get("healthz")
        assert "koord_runtime_proxy_calls_total" in proxy.get("metrics")


def test_it_serves_in_front_of_docker(dockerd: Dockerd, registrations: Path, tmp_path: Path) -> None:
    with Confined("docker", dockerd.socket, registrations, tmp_path) as proxy:
        output = dockerd.docker("run", "--rm", "--network=none", "busybox", "echo", "hello", host=proxy.socket)
        assert output.stdout == "hello\n"
        assert "ok" in proxy.get("healthz")


async def _shares_of_a_container(endpoint: Path, parent: str) -> str:
    async with CriClient(str(endpoint)) as client:
        config = sandbox_config(parent)
        sandbox = await client.run_pod_sandbox(config)
        created = await client.create_container(sandbox, container_config(), config)
        await client.start_container(created)
        result = await client.exec_sync(created, ["cat", "/sys/fs/cgroup/cpu/cpu.shares"])
        return str(result.stdout.decode().strip())
