"""Throughput of the embedded API server: get, create, patch, list, and delivery of a change to 100 watchers.

Run: `python tests/scale/bench_apiserver.py [--seconds 4] [--watchers 100]`. The server is a separate process with TLS;
the load comes from this process over kept-alive connections. On two cores client and server share the CPUs, so the
server's CPU time per request is reported, too: it depends least on other load.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.app.tasks import end_tasks
from tests.scale.figures import ROOT, Figure, report

CONNECTIONS = 8
LISTED = 500
PODS = "/api/v1/namespaces/bench/pods"
MERGE = "application/merge-patch+json"
Request = Callable[[int], Awaitable[None]]


def pod(name: str) -> dict[str, Any]:
    """A pod of typical size: about 2 kB as stored."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/service:1.2.3",
        "command": ["/bin/service", "--listen=:8080", "--verbose"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(8)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "ports": [{"containerPort": 8080}],
    }
    labels = {"app": "service", "tier": "web", "koordinator.sh/qosClass": "LS"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


class Server:
    """The API server as a child process, and an admin session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "control.standalone.apiserver"]
        command += ["--data-dir", str(folder), "--secure-port", "0"]
        started = time.monotonic()
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        self.kubeconfig = folder / "admin.kubeconfig"
        while not self.kubeconfig.exists():
            if self.process.poll() is not None or time.monotonic() - started > 60:
                raise SystemExit("the API server did not start")
            time.sleep(0.01)
        self.start_seconds = time.monotonic() - started
        config = yaml.safe_load(self.kubeconfig.read_text())
        self.url = config["clusters"][0]["cluster"]["server"]
        self.token = config["users"][0]["user"]["token"]
        self.ps = psutil.Process(self.process.pid)

    def session(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self.folder / "pki/ca.crt"))
        headers = {"Authorization": f"Bearer {self.token}"}
        return aiohttp.ClientSession(self.url, headers=headers, connector=aiohttp.TCPConnector(ssl=context, limit=0))

    def cpu(self) -> float:
        times = self.ps.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


async def rate(server: Server, name: str, at_least: float, seconds: float, request: Request) -> list[Figure]:
    """Requests per second over several connections, and the server's CPU time per request."""
    numbers = itertools.count()
    done = 0
    start, cpu = time.monotonic(), server.cpu()

    async def worker() -> None:
        nonlocal done
        while time.monotonic() - start < seconds:
            await request(next(numbers))
            done += 1

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    took, spent = time.monotonic() - start, server.cpu() - cpu
    figures = [Figure(f"apiserver_{name}_rate", done / took, "requests/s", at_least, at_least=True)]
    budget = 1.0 if name == "get" else None
    return [*figures, Figure(f"apiserver_{name}_server_cpu", 1000 * spent / max(done, 1), "ms", budget)]


async def fan_out(server: Server, watchers: int, changes: int = 100) -> list[Figure]:
    """Time from sending a change until every watcher has read it."""
    sent: dict[str, float] = {}
    delays: list[float] = []
    ready = asyncio.Semaphore(0)

    async def watch(session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.get("/api/v1/namespaces/fan/configmaps?watch=1", timeout=timeout) as response:
            ready.release()
            async for line in response.content:
                now = time.perf_counter()
                name = json.loads(line)["object"]["metadata"]["name"]
                if name in sent:
                    delays.append(now - sent[name])

    async with server.session() as session:
        await session.post("/api/v1/namespaces", json={"metadata": {"name": "fan"}})
        tasks = [asyncio.create_task(watch(session)) for _ in range(watchers)]
        for _ in range(watchers):
            await ready.acquire()
        for i in range(changes):
            sent[f"change-{i}"] = time.perf_counter()
            body = {"metadata": {"name": f"change-{i}"}, "data": {"k": "v" * 200}}
            async with session.post("/api/v1/namespaces/fan/configmaps", json=body) as response:
                response.raise_for_status()
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.5)
        await end_tasks(*tasks)
    if len(delays) != watchers * changes:
        raise SystemExit(f"{watchers * changes - len(delays)} events did not arrive")
    delays.sort()
    p50, p99 = (1000 * delays[int(len(delays) * q)] for q in (0.5, 0.99))
    return [
        Figure(f"apiserver_watch_fanout_{watchers}_p50", p50, "ms", 25),
        Figure(f"apiserver_watch_fanout_{watchers}_p99", p99, "ms", 100),
    ]


async def run(server: Server, seconds: float, watchers: int) -> list[Figure]:
    figures = [Figure("apiserver_start", server.start_seconds, "s", 3.0)]
    async with server.session() as session:

        async def call(method: str, path: str, body: Any = None, content_type: str = "application/json") -> None:
            data = json.dumps(body).encode() if body is not None else None
            async with session.request(method, path, data=data, headers={"Content-Type": content_type}) as response:
                await response.read()
                response.raise_for_status()

        await call("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        while True:
            async with session.get("/api/v1/namespaces/bench/serviceaccounts/default") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.05)
        for i in range(LISTED):
            await call("POST", PODS, pod(f"p{i}"))
        get = lambda i: call("GET", f"{PODS}/p{i % LISTED}")  # noqa: E731
        figures += await rate(server, "get", 1000, seconds, get)
        figures += await rate(server, "list_500_pods", 50, seconds, lambda i: call("GET", PODS))
        patch = lambda i: call("PATCH", f"{PODS}/p{i % LISTED}", {"metadata": {"labels": {"n": str(i)}}}, MERGE)  # noqa: E731
        figures += await rate(server, "patch", 200, seconds, patch)
        figures += await rate(server, "create_pod", 200, seconds, lambda i: call("POST", PODS, pod(f"new{i}")))
        small = lambda i: call("POST", "/api/v1/namespaces/bench/configmaps", {"metadata": {"name": f"c{i}"}})  # noqa: E731
        figures += await rate(server, "create_configmap", 400, seconds, small)
    figures += await fan_out(server, watchers)
    figures.append(Figure("apiserver_resident", server.ps.memory_info().rss / 2**20, "MiB", 300))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each kind of request is sent")
    parser.add_argument("--watchers", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            figures = asyncio.run(run(server, options.seconds, options.watchers))
        finally:
            server.stop()
    return report("apiserver", figures)


if __name__ == "__main__":
    raise SystemExit(main())
