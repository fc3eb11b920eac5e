"""Cost of koord-runtime-proxy with Docker: added latency per kind of call of a real dockerd.

Run: `python tests/scale/bench_proxy_docker.py [--calls 2000] [--lives 20]`, as root (it runs a dockerd). Each call is
made four times in random order by one client with kept connections: directly, directly again, through a relay that
parses nothing (`relayfloor.py`), through the proxy. `docker_passed_…`: lists and inspects, which are forwarded.
`docker_hooked_…`: a container's life with dockershim's calls, with a hook server in a separate process for creations,
starts and updates.

dockerd takes 1 ms for a list and 20 ms for an update, and varies by more than the proxy adds, so the difference of two
p99 values means nothing. So each way has a `Tap` in front of dockerd, which forwards bytes and records when dockerd got
the request and when it had responded. The rest of a call's time is the way's own, and the difference of the ways' own
times is what the proxy adds, hook included, dockerd excluded: `…_added_…`, with budgets. `…_floor_…`: what the relay
adds in the same way. `…_spread_…`: the difference of the two direct ways in the same figure, in 95 of 100 resamplings;
an `added` closer to its budget than that is `unclear`. `…_direct_…` and `…_through_…`: what clients wait, tap included.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.koordlet.runtimehooks.hooknode import EXTENDED
from tests.processmemory import resident_mib
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Dockerd
from tests.runtimes.pods import FOREVER
from tests.scale import relayfloor
from tests.scale.bench_proxy import HOOKS, child
from tests.scale.figures import Figure, report

PIECE = 1 << 18
WARM = 20
"""Rounds that are not counted."""
UPDATES = 30
"""Of each container."""
PART = 200
"""Calls per p99; a figure is the median of the run's parts."""
DRAWINGS = 500
LABELS = {"koordinator.sh/qosClass": "BE", "annotation.node.koordinator.sh/extended-resource-spec": EXTENDED}
"""For which koordlet answers a container named `c` with resources of its own."""
CALLS: tuple[tuple[str, str, str, dict[str, int] | None], ...] = (
    ("start", "POST", "/start", None),
    ("update", "POST", "/update", {"CpuShares": 300}),
    ("stop", "POST", "/stop?t=0", None),
    ("remove", "DELETE", "", None),
)
"""Of a container that was created."""
POD = f"pod_default_{uuid.uuid4()}"
REWRITTEN = 'koord_runtime_proxy_calls_total{{method="docker {}",result="rewritten"}}'
HOOK_SECONDS = 'koord_runtime_proxy_hook_seconds_{}{{hook="PreUpdateContainerResources"}}'
DIRECT, AGAIN, RELAY, THROUGH = range(4)


@dataclass
class Took:
    """Calls of one kind on one way, in order, milliseconds."""

    whole: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    """Without dockerd's part."""


Times = dict[str, Took]
Values = npt.NDArray[np.float64]
"""The last axis is calls."""


class Tap:
    """Forwards connections to `path` to dockerd. `dockerd`: seconds of its last response, counted from the request's
    first byte, recorded before the client has the response's last byte."""

    def __init__(self, path: Path, backend: Path) -> None:
        self.path = path
        self._backend = backend
        self._asked = self._answered = 0.0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self) -> None:
        """The next byte begins a request."""
        self._asked = 0.0

    @property
    def dockerd(self) -> float:
        return self._answered - self._asked

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._backend))
            threading.Thread(target=self._ask, args=(near, far), daemon=True).start()
            threading.Thread(target=self._answer, args=(near, far), daemon=True).start()

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(PIECE):
            self._asked = self._asked or time.perf_counter()
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        while data := far.recv(PIECE):
            self._answered = time.perf_counter()
            near.sendall(data)
        near.shutdown(socket.SHUT_WR)  # the client may still be reading it


class Docker(http.client.HTTPConnection):
    """dockerd's API at a unix socket, over one connection. `tap` is on its way."""

    def __init__(self, path: Path, tap: Tap) -> None:
        super().__init__("docker", timeout=60.0)
        self._path, self._tap = path, tap

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(self, method: str, path: str, body: Any = None, took: Took | None = None) -> Any:
        """The response's value; `took` receives its duration. Raises SystemExit when dockerd rejects the call."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: docker\r\nUser-Agent: Docker-Client/20.10.24 (linux)\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        if self.sock is None:
            self.connect()
        self._tap.begin()
        began = time.perf_counter()
        self.sock.sendall(f"{head}\r\n".encode() + data)  # in one write, as Go's client does
        with http.client.HTTPResponse(self.sock, method=method) as answer:
            answer.begin()
            reply = answer.read()
        whole = time.perf_counter() - began
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {reply[:300]!r}")
        if took is not None:
            took.whole.append(whole * 1e3)
            took.beside.append((whole - self._tap.dockerd) * 1e3)
        return json.loads(reply) if reply else None


class Node:
    """One dockerd, called on four ways."""

    def __init__(self, dockerd: Dockerd, ways: list[Docker]) -> None:
        self.ways = ways
        self._parent = dockerd.cgroup_parent()
        self._count = 0
        self.sandbox = self.create(ways[THROUGH], "POD", LABELS | {"io.kubernetes.docker.type": "podsandbox"})

    @property
    def labels(self) -> dict[str, str]:
        """Of a container."""
        return {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": self.sandbox}

    def turns(self) -> list[int]:
        return random.sample(range(len(self.ways)), len(self.ways))

    def create(self, way: Docker, name: str, labels: dict[str, str], took: Took | None = None) -> str:
        self._count += 1
        body = {
            "Image": "busybox", "Cmd": list(FOREVER), "Labels": labels, "Env": [f"V{n}=some value" for n in range(100)],
            "HostConfig": {"CgroupParent": self._parent, "NetworkMode": "host", "CpuShares": 256, "CpuPeriod": 100_000},
        }  # fmt: skip
        return str(way.ask("POST", f"/containers/create?name=k8s_{name}_{POD}_{self._count}", body, took)["Id"])

    def lives(self, times: list[Times]) -> None:
        """One container's calls on each way at the same time, as dockershim's."""
        pods = {}
        for way in self.turns():
            pods[way] = self.create(self.ways[way], "c", self.labels, times[way]["create"])
        for kind, method, path, body in CALLS:
            for turn in range(UPDATES if kind == "update" else 1):
                for way in self.turns():
                    content = body and {key: value + turn for key, value in body.items()}
                    self.ways[way].ask(method, f"/containers/{pods[way]}{path}", content, times[way][kind])


@contextlib.contextmanager
def proxy(backend: Path, hook_server: Path) -> Iterator[ProxyProcess]:
    proxy_process = ProxyProcess(backend, "--backend-runtime-mode=Docker")
    try:
        proxy_process.hooks.mkdir()
        registration = {"remote-endpoint": str(hook_server), "failure-policy": "Fail", "runtime-hooks": HOOKS}
        (proxy_process.hooks / "bench.json").write_text(json.dumps(registration))
        proxy_process.start()
        yield proxy_process
    finally:
        proxy_process.close()


def figures(name: str, times: list[Took], p50: float | None, p99: float | None) -> list[Figure]:
    """Each figure is the median of the run's parts, so that a burst of other work affects one part."""
    parts = max(1, len(times[DIRECT].whole) // PART)
    own, whole = (in_parts([getattr(way, kind) for way in times], parts) for kind in ("beside", "whole"))
    direct, again = own[DIRECT], own[AGAIN]
    both = np.concatenate([direct, again], axis=-1)
    drawn = np.random.default_rng(1).integers(0, direct.shape[-1], (DRAWINGS, *direct.shape))
    draws = [np.take_along_axis(way[None], drawn, axis=-1) for way in (direct, again)]
    results = []
    for label, share, budget in (("p50", 50, p50), ("p99", 99, p99)):

        def figure(larger: Values, less: Values, share: int = share) -> Any:
            return np.median(np.percentile(larger, share, axis=-1) - np.percentile(less, share, axis=-1), axis=-1)

        spread = float(np.percentile(np.abs(figure(draws[1], draws[0])), 95))
        name_of = f"{name}_{{}}_{label}".format
        results += [
            Figure(name_of("added"), float(figure(own[THROUGH], both)), "ms", budget, spread=spread if budget else 0.0),
            Figure(name_of("spread"), spread, "ms"),
            Figure(name_of("floor"), float(figure(own[RELAY], both)), "ms"),
            Figure(name_of("direct"), float(figure(whole[DIRECT], np.zeros((parts, 1)))), "ms"),
            Figure(name_of("through"), float(figure(whole[THROUGH], np.zeros((parts, 1)))), "ms"),
        ]
    return results


def in_parts(ways: Sequence[Sequence[float]], parts: int) -> Values:
    """By way and part, in order; the remainder is omitted."""
    size = len(ways[0]) // parts
    return np.array([way[: size * parts] for way in ways]).reshape(len(ways), parts, size)


def passed(node: Node, calls: int) -> list[Figure]:
    """Lists and inspects of ten stopped containers."""
    containers = [node.create(node.ways[DIRECT], f"idle{number}", node.labels) for number in range(10)]
    kinds = {"list": "/containers/json?all=1", "inspect": f"/containers/{containers[0]}/json"}
    times: list[Times] = [defaultdict(Took) for _ in node.ways]
    for turn in range(calls + WARM):
        for kind, path in kinds.items():
            for way in node.turns():
                node.ways[way].ask("GET", path, took=times[way][kind] if turn >= WARM else None)
    for container in containers:
        node.ways[DIRECT].ask("DELETE", f"/containers/{container}?force=1")
    return [
        figure for kind in kinds for figure in figures(f"docker_passed_{kind}", [way[kind] for way in times], 0.4, 1.0)
    ]


def hooked(node: Node, lives: int) -> list[Figure]:
    """Containers' lives. Only updates are numerous enough for a p99; for the others it is the maximum."""
    node.lives([defaultdict(Took) for _ in node.ways])
    times: list[Times] = [defaultdict(Took) for _ in node.ways]
    for _ in range(lives):
        node.lives(times)
    results = []
    for kind in times[0]:
        took = [way[kind] for way in times]
        results += figures(f"docker_hooked_{kind}", took, None, 2.0 if kind == "update" else None)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="passed calls of each kind each way")
    parser.add_argument("--lives", type=int, default=20, help="lives of containers each way")
    args = parser.parse_args()
    dockerd = Dockerd()
    try:
        dockerd.start()
        dockerd.load_images()
        with tempfile.TemporaryDirectory(prefix="koord-bench-") as name:
            hook_server, relay = Path(name) / "hooks.sock", Path(name) / "relay.sock"
            taps = [Tap(Path(name) / f"tap{way}.sock", dockerd.socket) for way in (DIRECT, AGAIN, RELAY, THROUGH)]
            with (
                relayfloor.child("relay", relay, taps[RELAY].path),
                child("hooks", hook_server),
                proxy(taps[THROUGH].path, hook_server) as process,
            ):
                paths = (taps[DIRECT].path, taps[AGAIN].path, relay, process.socket)
                node = Node(dockerd, [Docker(path, tap) for path, tap in zip(paths, taps, strict=True)])
                results = passed(node, args.calls) if args.calls else []
                results += hooked(node, args.lives) if args.lives else []
                for way in node.ways:
                    way.close()
                for call, count in (("create", args.lives), ("update", args.lives * UPDATES)):
                    rewritten = process.metric(REWRITTEN.format(call))
                    if rewritten < count:
                        raise SystemExit(f"only {rewritten:.0f} of {count} {call}s were rewritten")
                if args.lives:
                    took = process.metric(HOOK_SECONDS.format("sum")) / process.metric(HOOK_SECONDS.format("count"))
                    results.append(Figure("docker_hooked_update_hook_mean", took * 1e3, "ms"))
                results.append(Figure("docker_resident", resident_mib(process.pid), "MiB", 50.0))
    finally:
        dockerd.close()
    return report("proxy-docker", results)


if __name__ == "__main__":
    sys.exit(main())
