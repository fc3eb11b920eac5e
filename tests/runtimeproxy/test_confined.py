"""The proxy does all its work under the limits of its unit."""

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

from control.ctl import runtimeproxyunits as units
from control.standalone.kubelet.criclient import CriClient
from koordlet.api.hooks import api_pb2, api_pb2_grpc
from tests.koordlet.process.conftest import free_port
from tests.runtimeproxy.confine import command
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config

pytestmark = pytest.mark.runtime

UNIT = units.texts()[f"containerd/{units.UNIT}"]
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
    api_pb2_grpc.add_RuntimeHookServiceServicer_to_server(Hooks(), server)
    server.add_insecure_port(f"unix:{tmp_path / 'hooks.sock'}")
    server.start()
    told = {"remote-endpoint": str(tmp_path / "hooks.sock"), "failure-policy": "Fail"}
    (folder / "hooks.json").write_text(json.dumps({**told, "runtime-hooks": ["PreCreateContainer"]}))
    yield folder
    server.stop(None).wait()


def test_what_the_unit_forbids_is_forbidden_here(tmp_path: Path) -> None:
    """Or the test below would show nothing."""
    program = [sys.executable, "-c", FORBIDDEN, str(tmp_path)]
    done = subprocess.run(command(UNIT, [tmp_path], program), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own").exists()


def test_it_starts_asks_hooks_serves_and_ends(containerd: Containerd, registrations: Path, tmp_path: Path) -> None:
    own, log, port = tmp_path / "run", tmp_path / "log", free_port()
    own.mkdir()
    listening = own / "runtimeproxy.sock"
    program = [
        sys.executable, "-m", "runtimeproxy", f"--koord-runtimeproxy-endpoint={listening}",
        f"--remote-runtime-service-endpoint={containerd.socket}", f"--hook-server-dir={registrations}",
        "--hook-timeout=100s", f"--metrics-addr=127.0.0.1:{port}",
    ]  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor, log.open("wb") as output:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE)
        told = ["env", f"NOTIFY_SOCKET={tmp_path / 'notify'}", *command(UNIT, [own, registrations], program)]
        process = subprocess.Popen(told, stdout=output, stderr=output)
        try:
            assert supervisor.recv(100) == b"READY=1"
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            assert {"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} <= set(status)
            assert asyncio.run(_shares_of_a_container(listening, containerd.cgroup_parent())) == "777"
            assert "ok" in _get(f"http://127.0.0.1:{port}/healthz")
            assert "koord_runtime_proxy_calls_total" in _get(f"http://127.0.0.1:{port}/metrics")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert supervisor.recv(100) == b"STOPPING=1"
        except BaseException:
            sys.stderr.write(log.read_text())
            raise
        finally:
            process.kill()
            process.wait()
    assert "Operation not permitted" not in log.read_text()
    assert not listening.exists()


async def _shares_of_a_container(endpoint: Path, parent: str) -> str:
    async with CriClient(str(endpoint)) as client:
        config = sandbox_config(parent)
        sandbox = await client.run_pod_sandbox(config)
        made = await client.create_container(sandbox, container_config(), config)
        await client.start_container(made)
        seen = await client.exec_sync(made, ["cat", "/sys/fs/cgroup/cpu/cpu.shares"])
        return str(seen.stdout.decode().strip())


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())
