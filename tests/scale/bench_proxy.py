"""What koord-runtime-proxy costs: latency added to each kind of call, throughput, memory, and how fast it is back.

Run: `python tests/scale/bench_proxy.py [--pods 600] [--calls 1500] [--seconds 6]`, as root (it runs a containerd). All
is measured twice in the same run, call by call in turns, directly and through the proxy, from one client (gRPC for
Python on the proxy's own loop, uvloop), so that both paths have the machine's noise alike.

`proxy_passed_…`: calls that no hook is registered for, against Debian's containerd: added at p50 and p99, the direct
call's own times beside them, and calls a second of eight callers. `proxy_hooked_…`: the calls of a pod's life with a
hook server that answers each hook in a process of its own, against a runtime that answers at once (a real one takes
tens of milliseconds to make a container, and varies by more than what is measured); hook and rewriting are in the
times, and the hook's own mean is told. RemoveContainer and RemovePodSandbox have no hook, but are looked into.
`proxy_resident` is after all that, `proxy_recovery` from exec to the first answer, with containerd's objects.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.api.cri import api_pb2 as cri
from koordlet.api.hooks import api_pb2 as hooks
from koordlet.api.hooks import api_pb2_grpc
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from koordlet.app.heap import settle_heap
from koordlet.app.runner import run
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.scale.figures import Figure, report

CALLERS = 8
RESTARTS = 7
HOOKS = ["PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources"]
AFTER_HOOKS = ["PostStartContainer", "PostStopContainer", "PostStopPodSandbox"]
Call = Callable[[], Awaitable[Any]]


# Processes beside the proxy


class EveryHook(api_pb2_grpc.RuntimeHookServiceServicer):
    """Answers as koordlet does: a copy of the request with something changed."""

    async def _pod(self, request: Any, context: Any) -> Any:
        answer = hooks.PodSandboxHookResponse(
            labels=request.labels, annotations=request.annotations, cgroup_parent=request.cgroup_parent
        )
        answer.annotations["bench"] = "hooked"
        return answer

    async def _container(self, request: Any, context: Any) -> Any:
        answer = hooks.ContainerResourceHookResponse(
            container_annotations=request.container_annotations,
            container_resources=request.container_resources,
            pod_cgroup_parent=request.pod_cgroup_parent,
            container_envs=request.container_envs,
        )
        answer.container_resources.cpu_shares = 512
        return answer

    PreRunPodSandboxHook = PostStopPodSandboxHook = _pod
    PreCreateContainerHook = PreStartContainerHook = PostStartContainerHook = _container
    PreUpdateContainerResourcesHook = PostStopContainerHook = _container


class AtOnce(grpc.GenericRpcHandler):
    """A runtime that has done everything already."""

    def __init__(self) -> None:
        self._made = 0

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer(details.method.rpartition("/")[2]))

    def _answer(self, method: str) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            if method in ("RunPodSandbox", "CreateContainer"):
                self._made += 1
                return b"\x0a\x40" + b"%064x" % self._made  # field 1, an id
            return b""

        return answer


async def serve(path: str, kind: str) -> None:
    """A child's whole life."""
    server = grpc.aio.server()
    if kind == "hooks":
        api_pb2_grpc.add_RuntimeHookServiceServicer_to_server(EveryHook(), server)
    else:
        server.add_generic_rpc_handlers((AtOnce(),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    settle_heap()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(0)


@contextlib.contextmanager
def child(kind: str, path: Path) -> Iterator[None]:
    """One of them, serving."""
    with subprocess.Popen([sys.executable, __file__, f"--serve={kind}", f"--socket={path}"]) as process:
        try:
            while not _connects(path):
                if process.poll() is not None:
                    raise SystemExit(f"{kind} ended")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def proxy(backend: Path, hook_server: Path | None = None) -> Iterator[ProxyProcess]:
    made = ProxyProcess(backend)
    try:
        if hook_server is not None:
            made.hooks.mkdir()
            told = {"remote-endpoint": str(hook_server), "failure-policy": "Fail", "runtime-hooks": HOOKS + AFTER_HOOKS}
            (made.hooks / "bench.json").write_text(json.dumps(told))
        made.start()
        yield made
    finally:
        made.close()


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def resident(process: ProxyProcess) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Measuring


class Client:
    """Raw messages to one socket."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}

    async def ask(self, method: str, body: bytes = b"", service: str = "RuntimeService") -> bytes:
        path = f"/runtime.v1.{service}/{method}"
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        answer: bytes = await call(body, timeout=30)
        return answer


@contextlib.asynccontextmanager
async def clients(*paths: Path) -> AsyncIterator[list[Client]]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20)]
    async with contextlib.AsyncExitStack() as stack:
        yield [
            Client(await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{path}", options=options)))
            for path in paths
        ]


async def timed(call: Awaitable[bytes]) -> tuple[float, bytes]:
    began = time.perf_counter()
    answer = await call
    return (time.perf_counter() - began) * 1e3, answer


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def added(name: str, direct: list[float], through: list[float], p50: float | None, p99: float) -> list[Figure]:
    """Differences of quantiles, and the direct ones."""
    figures = []
    for label, share, budget in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        figures.append(
            Figure(f"{name}_added_{label}", quantile(through, share) - quantile(direct, share), "ms", budget)
        )
        figures.append(Figure(f"{name}_direct_{label}", quantile(direct, share), "ms"))
    return figures


async def passed(containerd: Containerd, process: ProxyProcess, calls: int, seconds: float) -> list[Figure]:
    """Calls without hooks."""
    config = sandbox_config(containerd.cgroup_parent())
    async with clients(containerd.socket, process.socket) as both:
        direct = both[0]
        request = cri.RunPodSandboxRequest(config=config)
        pod = cri.RunPodSandboxResponse.FromString(await direct.ask("RunPodSandbox", request.SerializeToString()))
        pod_id = pod.pod_sandbox_id
        made = []
        for number in range(10):
            create = cri.CreateContainerRequest(
                pod_sandbox_id=pod_id, config=container_config(name=f"c{number}"), sandbox_config=config
            )
            made.append(await direct.ask("CreateContainer", create.SerializeToString()))
        container = cri.CreateContainerResponse.FromString(made[0]).container_id
        kinds = {
            "Version": b"",
            "ListContainers": b"",
            "ListPodSandbox": b"",
            "PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id).SerializeToString(),
            "ContainerStatus": cri.ContainerStatusRequest(container_id=container).SerializeToString(),
        }
        times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
        for turn in range(calls + 50):
            for kind, body in kinds.items():
                for way in (0, 1) if turn % 2 else (1, 0):
                    took, _ = await timed(both[way].ask(kind, body))
                    if turn >= 50:
                        times[kind][way].append(took)
        figures = []
        for kind, (one, other) in times.items():
            figures += added(f"proxy_passed_{kind}", one, other, 0.4, 1.0)
        rates = await throughput([lambda client=client: client.ask("ListPodSandbox") for client in both], seconds)
        await direct.ask("StopPodSandbox", b"\x0a\x40" + pod_id.encode())
        await direct.ask("RemovePodSandbox", b"\x0a\x40" + pod_id.encode())
    return [
        *figures,
        Figure("proxy_passed_throughput_direct", rates[0], "calls/s"),
        Figure("proxy_passed_throughput", rates[1], "calls/s"),
        Figure("proxy_passed_throughput_share", rates[1] / rates[0], "of 1"),
    ]


async def throughput(ways: list[Call], seconds: float) -> list[float]:
    """Calls a second of CALLERS callers each way, in turns of half a second."""
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


async def life(client: Client, number: int, times: dict[str, list[float]]) -> None:
    """A pod's calls with what a kubelet's contain: some 5 kB for a container."""
    config = sandbox_config("/kubepods/besteffort/podx", name=f"pod-{number}", labels={"app": "bench"})

    async def ask(method: str, request: Any) -> bytes:
        took, answer = await timed(client.ask(method, request.SerializeToString()))
        times[method].append(took)
        return answer

    pod = cri.RunPodSandboxResponse.FromString(await ask("RunPodSandbox", cri.RunPodSandboxRequest(config=config)))
    pod_id = pod.pod_sandbox_id
    container = container_config(envs=[(f"VARIABLE_{one}", "some value of it") for one in range(100)])
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


async def hooked(runtime: Path, process: ProxyProcess, pods: int, seconds: float) -> list[Figure]:
    """Calls with hooks."""
    async with clients(runtime, process.socket) as both:
        times: tuple[dict[str, list[float]], dict[str, list[float]]] = (defaultdict(list), defaultdict(list))
        warm: dict[str, list[float]] = defaultdict(list)
        for number in range(pods + 30):
            for way in (0, 1) if number % 2 else (1, 0):
                await life(both[way], number, warm if number < 30 else times[way])
        figures = []
        for method in times[0]:
            figures += added(f"proxy_hooked_{method}", times[0][method], times[1][method], None, 2.0)
        rates = await throughput([lambda client=client: life(client, 0, warm) for client in both], seconds)
    hook = 'koord_runtime_proxy_hook_seconds_{}{{hook="PreCreateContainer"}}'
    hook_mean = process.metric(hook.format("sum")) / process.metric(hook.format("count")) * 1e3
    rewritten = process.metric('koord_runtime_proxy_calls_total{method="CreateContainer",result="rewritten"}')
    if rewritten < pods:
        raise SystemExit(f"only {rewritten:.0f} of {pods} containers went by their hook")
    return [
        *figures,
        Figure("proxy_hooked_PreCreateContainer_mean", hook_mean, "ms"),
        Figure("proxy_hooked_pods_direct", rates[0], "pods/s"),
        Figure("proxy_hooked_pods", rates[1], "pods/s"),
    ]


async def recovery(process: ProxyProcess) -> list[Figure]:
    """From exec to the first answer, after a kill."""
    took = []
    for _ in range(RESTARTS):
        process.kill()
        began = time.perf_counter()
        process.start()
        async with clients(process.socket) as (client,):
            await client.ask("Version")
        took.append(time.perf_counter() - began)
    return [
        Figure("proxy_recovery_median", statistics.median(took), "s", 1.0),
        Figure("proxy_recovery_worst", max(took), "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=600, help="lives of pods each way, for hooked calls")
    parser.add_argument("--calls", type=int, default=1500, help="calls of each kind each way, for passed ones")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each throughput")
    parser.add_argument("--serve", choices=("hooks", "runtime"), help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        run(serve(args.socket, args.serve))
        return 0
    figures = []
    with tempfile.TemporaryDirectory(prefix="koord-bench-") as name:
        runtime, hook_server = Path(name) / "runtime.sock", Path(name) / "hooks.sock"
        with child("runtime", runtime), child("hooks", hook_server), proxy(runtime, hook_server) as process:
            figures += run(hooked(runtime, process, args.pods, args.seconds))
            figures.append(Figure("proxy_resident_hooked", resident(process), "MiB", 50.0))
    containerd = Containerd()
    try:
        containerd.start()
        containerd.import_images()
        with proxy(containerd.socket) as process:
            figures += run(passed(containerd, process, args.calls, args.seconds))
            figures.append(Figure("proxy_resident", resident(process), "MiB", 50.0))
            figures += run(recovery(process))
    finally:
        containerd.close()
    return report("proxy", figures)


if __name__ == "__main__":
    sys.exit(main())
