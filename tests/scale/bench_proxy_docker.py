"""What koord-runtime-proxy costs before Docker: latency added to each kind of call of a real dockerd.

Run: `python tests/scale/bench_proxy_docker.py [--calls 1000] [--lives 40]`, as root (it runs a dockerd). Each call is
made twice in turns, directly and through the proxy, by one client that keeps its connections, so that both ways have
the machine's noise alike. `docker_passed_…`: lists and descriptions, which pass. `docker_hooked_…`: a container's life
as dockershim asks for it, with a hook server in a process of its own before creations, starts and updates.

dockerd takes tens to hundreds of milliseconds for a creation, a start or a stop, and varies by more than what is
measured; an update sets all of a container's resources when a hook has answered, else those of the request. Of so few
lives p99 is the slowest one. So only the difference at p50 says something of these, and no budget is held against it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.koordlet.runtimehooks.hooknode import EXTENDED
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Dockerd
from tests.runtimes.pods import FOREVER
from tests.scale.bench_proxy import HOOKS, child, resident
from tests.scale.figures import Figure, report

WARM = 20
"""Rounds before any is counted."""
UPDATES = 10
"""Of each container."""
LABELS = {"koordinator.sh/qosClass": "BE", "annotation.node.koordinator.sh/extended-resource-spec": EXTENDED}
"""For which koordlet answers a container named `c` with resources of its own."""
POD = f"pod_default_{uuid.uuid4()}"
REWRITTEN = 'koord_runtime_proxy_calls_total{{method="docker {}",result="rewritten"}}'
Times = dict[str, list[float]]


class Docker(http.client.HTTPConnection):
    """dockerd's API at a unix socket, over one connection."""

    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=60.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[float, Any]:
        """Milliseconds and the answer's value. Raises SystemExit when dockerd refuses."""
        data = None if body is None else json.dumps(body).encode()
        began = time.perf_counter()
        self.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        with self.getresponse() as answer:
            said = answer.read()
        took = (time.perf_counter() - began) * 1e3
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {said[:300]!r}")
        return took, json.loads(said) if said else None


class Node:
    """One dockerd, asked by two connections: directly and through the proxy."""

    def __init__(self, dockerd: Dockerd, proxy: ProxyProcess) -> None:
        self.ways = (Docker(dockerd.socket), Docker(proxy.socket))
        self._parent = dockerd.cgroup_parent()
        self._count = 0
        _, self.sandbox = self.create(self.ways[1], "POD", LABELS | {"io.kubernetes.docker.type": "podsandbox"})

    @property
    def labels(self) -> dict[str, str]:
        """Of a container."""
        return {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": self.sandbox}

    def create(self, way: Docker, name: str, labels: dict[str, str]) -> tuple[float, str]:
        self._count += 1
        body = {
            "Image": "busybox", "Cmd": list(FOREVER), "Labels": labels, "Env": [f"V{n}=some value" for n in range(100)],
            "HostConfig": {"CgroupParent": self._parent, "NetworkMode": "host", "CpuShares": 256, "CpuPeriod": 100_000},
        }  # fmt: skip
        took, made = way.ask("POST", f"/containers/create?name=k8s_{name}_{POD}_{self._count}", body)
        return took, str(made["Id"])

    def life(self, way: Docker, times: Times) -> None:
        """A container's, by dockershim's calls."""
        took, made = self.create(way, "c", self.labels)
        times["create"].append(took)
        times["start"].append(way.ask("POST", f"/containers/{made}/start")[0])
        for turn in range(UPDATES):
            times["update"].append(way.ask("POST", f"/containers/{made}/update", {"CpuShares": 300 + turn})[0])
        times["stop"].append(way.ask("POST", f"/containers/{made}/stop?t=0")[0])
        times["remove"].append(way.ask("DELETE", f"/containers/{made}")[0])


@contextlib.contextmanager
def proxy(backend: Path, hook_server: Path) -> Iterator[ProxyProcess]:
    made = ProxyProcess(backend, "--backend-runtime-mode=Docker")
    try:
        made.hooks.mkdir()
        told = {"remote-endpoint": str(hook_server), "failure-policy": "Fail", "runtime-hooks": HOOKS}
        (made.hooks / "bench.json").write_text(json.dumps(told))
        made.start()
        yield made
    finally:
        made.close()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def added(name: str, direct: list[float], through: list[float], p50: float | None, p99: float | None) -> list[Figure]:
    """Differences of quantiles with their budgets, and the direct ones."""
    figures = []
    for label, share, budget in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        both = [quantile(values, share) for values in (direct, through)]
        figures.append(Figure(f"{name}_added_{label}", both[1] - both[0], "ms", budget))
        figures.append(Figure(f"{name}_direct_{label}", both[0], "ms"))
    return figures


def passed(node: Node, calls: int) -> list[Figure]:
    """Lists and descriptions, of ten containers that do not run."""
    made = [node.create(node.ways[0], f"idle{number}", node.labels)[1] for number in range(10)]
    kinds = {"list": "/containers/json?all=1", "inspect": f"/containers/{made[0]}/json"}
    times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
    for turn in range(calls + WARM):
        for kind, path in kinds.items():
            for way in (0, 1) if turn % 2 else (1, 0):
                took, _ = node.ways[way].ask("GET", path)
                if turn >= WARM:
                    times[kind][way].append(took)
    for one in made:
        node.ways[0].ask("DELETE", f"/containers/{one}?force=1")
    return [one for kind, both in times.items() for one in added(f"docker_passed_{kind}", *both, 0.4, 1.0)]


def hooked(node: Node, lives: int) -> list[Figure]:
    """Containers' lives; of these calls updates alone are quick and many enough for a budget."""
    times: tuple[Times, Times] = (defaultdict(list), defaultdict(list))
    for number in range(lives + 1):
        for way in (0, 1) if number % 2 else (1, 0):
            node.life(node.ways[way], defaultdict(list) if not number else times[way])
    figures = []
    for kind in times[0]:
        p99 = 2.0 if kind == "update" else None
        figures += added(f"docker_hooked_{kind}", times[0][kind], times[1][kind], None, p99)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="passed calls of each kind each way")
    parser.add_argument("--lives", type=int, default=40, help="lives of containers each way")
    args = parser.parse_args()
    dockerd = Dockerd()
    try:
        dockerd.start()
        dockerd.load_images()
        with tempfile.TemporaryDirectory(prefix="koord-bench-") as name:
            hook_server = Path(name) / "hooks.sock"
            with child("hooks", hook_server), proxy(dockerd.socket, hook_server) as process:
                node = Node(dockerd, process)
                figures = [*passed(node, args.calls), *hooked(node, args.lives)]
                for way in node.ways:
                    way.close()
                for call, count in (("create", args.lives), ("update", args.lives * UPDATES)):
                    told = process.metric(REWRITTEN.format(call))
                    if told < count:
                        raise SystemExit(f"only {told:.0f} of {count} {call}s were rewritten")
                figures.append(Figure("docker_resident", resident(process), "MiB", 50.0))
    finally:
        dockerd.close()
    return report("proxy-docker", figures)


if __name__ == "__main__":
    sys.exit(main())
