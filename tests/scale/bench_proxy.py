"""Cost of koord-runtime-proxy: added latency per kind of call, throughput, memory, and restart time.

Run: `python tests/scale/bench_proxy.py [--pods 1000] [--calls 1500] [--seconds 6] [--client own|grpc]`, as root (it
runs a containerd). Every call is made directly and through the proxy in turns, by one client, so that both have the
same noise; a figure is the median of ROUNDS parts of the run, so that a burst of other work affects one part. The
client is the proxy's own (one write and one read per call, no threads): Python's gRPC takes longer than everything
measured, and its threads affect p99.

`proxy_passed_…`: calls without a registered hook, with Debian's containerd: added latency at p50 and p99, the direct
call's, and calls per second of eight clients. `proxy_hooked_…`: the calls of a pod's life with koordlet's hook server
in a separate process (on a fake node: nothing is written to a kernel), called at every stage, with a runtime that
responds immediately (a real one takes tens of milliseconds to create a container, and varies by more than what is
measured); hook and rewriting are included; post hooks end before the next call, as with a kubelet. RemoveContainer and
RemovePodSandbox have no hook, but are intercepted. `proxy_floor_…`: what a relay adds that parses nothing and calls an
echo server (`relayfloor.py`): the lower bound for a hooked call here. `proxy_hook_server_…`: the hook server alone,
called by the same client. `proxy_newborn_…`: a sandbox hook of a real koordlet at work on a node with NEWBORN_PODS
pods, which returns when the kernel has the pod's settings, without the proxy (`newborns.py`). `proxy_resident` is
measured after all that, `proxy_recovery` from exec to the first response, with containerd's objects.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api.cri import SERVICES
from koordlet.api.cri import api_pb2 as cri
from koordlet.api.hooks import SERVICE as HOOKS_SERVICE
from koordlet.api.hooks import api_pb2 as hooks
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from koordlet.app.heap import freeze_heap
from koordlet.app.http2.client import UnaryClient
from koordlet.app.http2.server import GrpcServer
from koordlet.app.runner import run
from koordlet.runtimehooks.protocols.server import RuntimeHookServer
from runtimeproxy.cri.calls import CriMethod as Intercepted
from tests.koordlet.runtimehooks.hooknode import EXTENDED, Node
from tests.processmemory import resident_mib
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.scale.children import serving
from tests.scale.figures import Figure, report
from tests.scale.newborns import sandbox_times
from tests.scale.relayfloor import relay_times

CALLERS = 8
RESTARTS = 7
ROUNDS = 5
PATIENCE = 30.0
NEWBORN_PODS, WARM = 60, 30
HOOKS = ["PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"]
AFTER_HOOKS = ["PostStartContainer", "PostStopContainer", "PostStopPodSandbox"]
RESTS = ("StartContainer", "StopContainer", "StopPodSandbox")
REST_SECONDS = 0.004
HOOK_SECONDS = 'koord_runtime_proxy_hook_seconds_{}{{hook="PreCreateContainer"}}'
ASKED = ("Version", "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus")
"""Called by the proxy itself."""
BATCH_POD = {"koordinator.sh/qosClass": "BE"}
BATCH_SPEC = {"node.koordinator.sh/extended-resource-spec": EXTENDED}
CriMethod = Callable[[], Awaitable[Any]]


# Other processes


class AtOnce:
    """A runtime that responds immediately."""

    def __init__(self) -> None:
        self._made = 0

    def method(self, name: str) -> Callable[[bytes, float | None], Awaitable[bytes]]:
        async def answer(request: bytes, seconds: float | None) -> bytes:
            if name in ("RunPodSandbox", "CreateContainer"):
                self._made += 1
                return b"\x0a\x40" + b"%064x" % self._made  # field 1, an id
            return b""

        return answer


async def serve(path: str, kind: str) -> None:
    """Main function of a child process."""
    runtime = AtOnce()
    server = GrpcServer({f"/{SERVICES[0]}/{name}": runtime.method(name) for name in (*ASKED, *Intercepted)})
    koordlet = RuntimeHookServer(Path(path), Node().calls, "containerd")
    await (koordlet.start() if kind == "hooks" else server.start(Path(path)))
    freeze_heap()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await (koordlet.stop() if kind == "hooks" else server.stop(0.0))


@contextlib.contextmanager
def child(kind: str, path: Path) -> Iterator[None]:
    """A child process, serving."""
    with serving(__file__, f"--serve={kind}", f"--socket={path}", at=path):
        yield


@contextlib.contextmanager
def proxy(backend: Path, hooks_at: Path | None = None) -> Iterator[ProxyProcess]:
    proxy_process = ProxyProcess(backend)
    try:
        if hooks_at is not None:
            proxy_process.hooks.mkdir()
            registration = {
                "remote-endpoint": str(hooks_at),
                "failure-policy": "Fail",
                "runtime-hooks": HOOKS + AFTER_HOOKS,
            }
            (proxy_process.hooks / "bench.json").write_text(json.dumps(registration))
        proxy_process.start()
        yield proxy_process
    finally:
        proxy_process.close()


# Measuring


class Caller(Protocol):
    """Sends raw messages to one socket."""

    async def ask(self, method: str, body: bytes = b"", service: str = SERVICES[0]) -> bytes: ...


class OwnCaller:
    def __init__(self, client: UnaryClient) -> None:
        self._client = client

    async def ask(self, method: str, body: bytes = b"", service: str = SERVICES[0]) -> bytes:
        return await self._client.call(f"/{service}/{method}", body, PATIENCE)


class GrpcCaller:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}

    async def ask(self, method: str, body: bytes = b"", service: str = SERVICES[0]) -> bytes:
        path = f"/{service}/{method}"
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        answer: bytes = await call(body, timeout=PATIENCE)
        return answer


@contextlib.asynccontextmanager
async def callers(kind: str, *paths: Path) -> AsyncIterator[list[Caller]]:
    """One client per socket, in order."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20)]
    async with contextlib.AsyncExitStack() as stack:
        callers: list[Caller] = []
        for path in paths:
            if kind == "own":
                client = await UnaryClient.connect(str(path), "bench")
                stack.push_async_callback(client.close, 0.0)
                callers.append(OwnCaller(client))
            else:
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{path}", options=options))
                callers.append(GrpcCaller(channel))
        yield callers


async def timed(call: Awaitable[bytes]) -> tuple[float, bytes]:
    began = time.perf_counter()
    answer = await call
    return (time.perf_counter() - began) * 1e3, answer


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def parts(values: list[float]) -> list[list[float]]:
    """A run in ROUNDS parts, in order."""
    size = len(values) // ROUNDS
    return [values[number * size : (number + 1) * size] for number in range(ROUNDS)]


def added(name: str, direct: list[float], through: list[float], p50: float | None, p99: float) -> list[Figure]:
    """Differences of quantiles, and the quantiles of direct calls."""
    figures = []
    for label, share, budget in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        pairs = [
            (quantile(part, share), quantile(other, share))
            for part, other in zip(parts(direct), parts(through), strict=True)
        ]
        more = statistics.median(other - direct for direct, other in pairs)
        figures.append(Figure(f"{name}_added_{label}", more, "ms", budget))
        figures.append(Figure(f"{name}_direct_{label}", statistics.median(direct for direct, _ in pairs), "ms"))
    return figures


async def passed(containerd: Containerd, process: ProxyProcess, calls: int, seconds: float, kind: str) -> list[Figure]:
    """Calls without hooks."""
    config = sandbox_config(containerd.cgroup_parent())
    async with callers(kind, containerd.socket, process.socket) as both:
        direct = both[0]
        request = cri.RunPodSandboxRequest(config=config)
        pod = cri.RunPodSandboxResponse.FromString(await direct.ask("RunPodSandbox", request.SerializeToString()))
        pod_id = pod.pod_sandbox_id
        ids = []
        for number in range(10):
            create = cri.CreateContainerRequest(
                pod_sandbox_id=pod_id, config=container_config(name=f"c{number}"), sandbox_config=config
            )
            ids.append(await direct.ask("CreateContainer", create.SerializeToString()))
        container = cri.CreateContainerResponse.FromString(ids[0]).container_id
        kinds = {
            "Version": b"",
            "ListContainers": b"",
            "ListPodSandbox": b"",
            "PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id).SerializeToString(),
            "ContainerStatus": cri.ContainerStatusRequest(container_id=container).SerializeToString(),
        }
        times: dict[str, tuple[list[float], list[float]]] = {method: ([], []) for method in kinds}
        for turn in range(calls + 50):
            for method, body in kinds.items():
                for way in (0, 1) if turn % 2 else (1, 0):
                    took, _ = await timed(both[way].ask(method, body))
                    if turn >= 50:
                        times[method][way].append(took)
        figures = []
        for method, (without_proxy, other) in times.items():
            figures += added(f"proxy_passed_{method}", without_proxy, other, 0.4, 1.0)
        rates = await throughput([lambda client=client: client.ask("ListPodSandbox") for client in both], seconds)  # type: ignore[misc]
        await direct.ask("StopPodSandbox", b"\x0a\x40" + pod_id.encode())
        await direct.ask("RemovePodSandbox", b"\x0a\x40" + pod_id.encode())
    return [
        *figures,
        Figure("proxy_passed_throughput_direct", rates[0], "calls/s"),
        Figure("proxy_passed_throughput", rates[1], "calls/s"),
        Figure("proxy_passed_throughput_share", rates[1] / rates[0], "of 1"),
    ]


async def throughput(ways: list[CriMethod], seconds: float) -> list[float]:
    """Calls per second of CALLERS clients each way, in turns of half a second."""
    counts, spent = [0] * len(ways), [0.0] * len(ways)

    async def caller(way: int, end: float) -> None:
        while time.perf_counter() < end:
            await ways[way]()
            counts[way] += 1

    for _ in range(max(1, round(seconds))):
        for way in range(len(ways)):
            began = time.perf_counter()
            await asyncio.gather(*(caller(way, began + 0.5) for _ in range(CALLERS)))
            spent[way] += time.perf_counter() - began
    return [count / time_spent for count, time_spent in zip(counts, spent, strict=True)]


async def life(client: Caller, number: int, times: dict[str, list[float]], rest: float = 0.0) -> None:
    """A pod's calls with contents like a kubelet's: some 5 kB for a container. `rest`: seconds between a call with a
    post hook and the next one, which would wait for that hook; a kubelet takes longer."""
    config = sandbox_config("/kubepods/besteffort/podx", name=f"pod-{number}", labels=BATCH_POD, annotations=BATCH_SPEC)

    async def ask(method: str, request: Any) -> bytes:
        took, answer = await timed(client.ask(method, request.SerializeToString()))
        times[method].append(took)
        if rest and method in RESTS:
            await asyncio.sleep(rest)
        return answer

    pod = cri.RunPodSandboxResponse.FromString(await ask("RunPodSandbox", cri.RunPodSandboxRequest(config=config)))
    pod_id = pod.pod_sandbox_id
    container = container_config(name="c", envs=[(f"VARIABLE_{number}", "some value of it") for number in range(100)])
    create = cri.CreateContainerRequest(pod_sandbox_id=pod_id, config=container, sandbox_config=config)
    id = cri.CreateContainerResponse.FromString(await ask("CreateContainer", create)).container_id
    await ask("StartContainer", cri.ContainerRequest(container_id=id))
    resources = LinuxContainerResources(cpu_period=100_000, cpu_quota=200_000, cpu_shares=1024)
    update = cri.UpdateContainerResourcesRequest(container_id=id, linux=resources)
    await ask("UpdateContainerResources", update)
    await ask("StopContainer", cri.StopContainerRequest(container_id=id))
    await ask("RemoveContainer", cri.ContainerRequest(container_id=id))
    await ask("StopPodSandbox", cri.PodSandboxRequest(pod_sandbox_id=pod_id))
    await ask("RemovePodSandbox", cri.PodSandboxRequest(pod_sandbox_id=pod_id))


async def hooked(runtime: Path, process: ProxyProcess, pods: int, seconds: float, kind: str) -> list[Figure]:
    """Calls with hooks."""
    async with callers(kind, runtime, process.socket) as both:
        times: tuple[dict[str, list[float]], dict[str, list[float]]] = (defaultdict(list), defaultdict(list))
        warm: dict[str, list[float]] = defaultdict(list)
        for number in range(pods + 30):
            for way in (0, 1) if number % 2 else (1, 0):
                await life(both[way], number, warm if number < 30 else times[way], REST_SECONDS)
        figures = []
        for method in times[0]:
            figures += added(f"proxy_hooked_{method}", times[0][method], times[1][method], None, 2.0)
        took = process.metric(HOOK_SECONDS.format("sum")) / process.metric(HOOK_SECONDS.format("count")) * 1e3
        rates = await throughput([lambda client=client: life(client, 0, warm) for client in both], seconds)  # type: ignore[misc]
    rewritten = process.metric('koord_runtime_proxy_calls_total{method="CreateContainer",result="rewritten"}')
    if rewritten < pods:
        raise SystemExit(f"only {rewritten:.0f} of {pods} containers went by their hook")
    return [
        *figures,
        Figure("proxy_hooked_PreCreateContainer_mean", took, "ms"),
        Figure("proxy_hooked_pods_direct", rates[0], "pods/s"),
        Figure("proxy_hooked_pods", rates[1], "pods/s"),
    ]


async def hook_server(path: Path, calls: int, kind: str) -> list[Figure]:
    """The hook server without the proxy, called for a container like those of `life`."""
    request = hooks.ContainerResourceHookRequest(
        pod_meta={"name": "pod", "namespace": "default", "uid": "1"},
        container_meta={"name": "c"},
        pod_labels=BATCH_POD,
        pod_annotations=BATCH_SPEC,
        pod_cgroup_parent="/kubepods/besteffort/pod1",
        container_resources={"cpu_period": 100_000, "cpu_shares": 2},
        container_envs={f"VARIABLE_{number}": "some value of it" for number in range(100)},
    ).SerializeToString()
    times = []
    async with callers(kind, path) as (server,):
        for number in range(calls + 50):
            took, answer = await timed(server.ask("PreCreateContainerHook", request, HOOKS_SERVICE))
            if number >= 50:
                times.append(took)
    if hooks.ContainerResourceHookResponse.FromString(answer).container_resources.cpu_quota != 50_000:
        raise SystemExit("the hook server's response is not koordlet's")
    return [
        Figure(f"proxy_hook_server_{label}", statistics.median(quantile(part, share) for part in parts(times)), "ms")
        for label, share in (("p50", 0.5), ("p99", 0.99))
    ]


def newborns(calls: int) -> list[Figure]:
    """Sandbox hooks of a real koordlet for new pods."""
    times = sandbox_times(NEWBORN_PODS, calls + WARM)[WARM:]
    return [
        Figure(f"proxy_newborn_{label}", statistics.median(quantile(part, share) for part in parts(times)), "ms")
        for label, share in (("p50", 0.5), ("p99", 0.99))
    ]


async def recovery(process: ProxyProcess) -> list[Figure]:
    """Time from exec to the first response, after a kill."""
    took = []
    for _ in range(RESTARTS):
        process.kill()
        began = time.perf_counter()
        process.start()
        async with callers("own", process.socket) as (client,):
            await client.ask("Version")
        took.append(time.perf_counter() - began)
    return [
        Figure("proxy_recovery_median", statistics.median(took), "s", 1.0),
        Figure("proxy_recovery_worst", max(took), "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000, help="lives of pods each way, for hooked calls")
    parser.add_argument("--calls", type=int, default=1500, help="calls of each kind each way, for passed ones")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each throughput")
    parser.add_argument("--client", choices=("own", "grpc"), default="own", help="the client")
    parser.add_argument("--serve", choices=("hooks", "runtime"), help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        run(serve(args.socket, args.serve))
        return 0
    figures = []
    with tempfile.TemporaryDirectory(prefix="koord-bench-") as name:
        runtime, hooks_at = Path(name) / "runtime.sock", Path(name) / "hooks.sock"
        with child("runtime", runtime), child("hooks", hooks_at), proxy(runtime, hooks_at) as process:
            figures += run(hook_server(hooks_at, args.calls, args.client))
            figures += added("proxy_floor", *relay_times(Path(name), args.pods), None, 2.0)
            figures += run(hooked(runtime, process, args.pods, args.seconds, args.client))
            figures.append(Figure("proxy_resident_hooked", resident_mib(process.pid), "MiB", 50.0))
    figures += newborns(args.pods)
    containerd = Containerd()
    try:
        containerd.start()
        containerd.import_images()
        with proxy(containerd.socket) as process:
            figures += run(passed(containerd, process, args.calls, args.seconds, args.client))
            figures.append(Figure("proxy_resident", resident_mib(process.pid), "MiB", 50.0))
            figures += run(recovery(process))
    finally:
        containerd.close()
    return report("proxy", figures)


if __name__ == "__main__":
    sys.exit(main())
