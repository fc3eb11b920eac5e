"""`make bench-kubernetes`: koord-scheduler beside kube-scheduler on a real API server, both without request limits.

For each scheduler and number of nodes: etcd and kube-apiserver start empty, nodes and waiting pods are created, then
the scheduler starts with kube-scheduler's default plugins. The rate is that of bound pods between the first and the
last; CPU time is that of the scheduler's process in the same interval. API server and etcd share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.kubernetes.oracle.controlplane import ControlPlane, free_port, scheduler_configuration
from tests.scale.figures import Figure, report

ROOT = Path(__file__).resolve().parents[2]

POD_MAX_MS, RATIO_MIN = 0.8, 1.8
"""Goals: CPU time a pod, and the rate as a multiple of kube-scheduler's."""
POLL_S = 0.5
TIMEOUT_S = 300.0
CREATORS = 16
WAITING = "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName=&resourceVersion=0"


@dataclass(frozen=True)
class Burst:
    """`rate`: bound pods per second; `cpu_ms`: CPU time a pod; `memory`: resident MB."""

    rate: float
    cpu_ms: float
    memory: float


async def measure(programs: Path, ours: bool, nodes: int, pods: int) -> Burst:
    with tempfile.TemporaryDirectory(prefix="bench-kubernetes-") as folder:
        async with ControlPlane(Path(folder), programs) as plane:
            await create(plane, "/api/v1/nodes", [node(number) for number in range(nodes)])
            await create(plane, "/api/v1/namespaces/default/pods", [pod(number) for number in range(pods)])
            process = await (start_ours(plane) if ours else start_theirs(plane))
            try:
                return await observe(plane, psutil.Process(process.pid), pods)
            finally:
                process.kill()
                await process.wait()


async def create(plane: ControlPlane, path: str, bodies: list[Any]) -> None:
    queue = iter(bodies)

    async def work() -> None:
        for body in queue:
            await plane.request("POST", path, body)

    await asyncio.gather(*(work() for _ in range(CREATORS)))


def node(number: int) -> dict[str, Any]:
    name = f"node-{number}"
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}


def pod(number: int) -> dict[str, Any]:
    container = {"name": "main", "image": "img", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    return {"metadata": {"name": f"pod-{number}", "labels": {"app": "bench"}}, "spec": {"containers": [container]}}


async def start_theirs(plane: ControlPlane) -> asyncio.subprocess.Process:
    return await start(
        plane, "kube-scheduler", str(plane.programs / "kube-scheduler"), "--secure-port={port}",
    )  # fmt: skip


async def start_ours(plane: ControlPlane) -> asyncio.subprocess.Process:
    return await start(
        plane, "koord-scheduler", sys.executable, "-m", "control.scheduler", "--address=127.0.0.1", "--port={port}",
        "--secure-port=0",
    )  # fmt: skip


async def start(plane: ControlPlane, name: str, *argv: str) -> asyncio.subprocess.Process:
    configuration = plane.folder / f"{name}.yaml"
    configuration.write_text(yaml.safe_dump(scheduler_configuration(plane.kubeconfig(), percentage=0)))
    port = free_port()
    with (plane.folder / f"{name}.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *(word.format(port=port) for word in argv), f"--config={configuration}",
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
        )  # fmt: skip


async def observe(plane: ControlPlane, process: psutil.Process, pods: int) -> Burst:
    """Poll the number of waiting pods until there are none. The interval begins at the last poll that found all.

    The API server is asked, and not the scheduler, whose own work is measured."""
    begun: tuple[float, float] = (time.monotonic(), cpu_seconds(process))
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            at, used = time.monotonic(), cpu_seconds(process)
            waiting = len((await plane.request("GET", WAITING))["items"])
            if waiting == pods:
                begun = (at, used)
            elif not waiting:
                return Burst(pods / (at - begun[0]), 1000 * (used - begun[1]) / pods, process.memory_info().rss / 1e6)
            await asyncio.sleep(POLL_S)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubernetes", default="v1.35")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=2000)
    arguments = parser.parse_args()
    programs = ROOT / "build" / "kubernetes" / arguments.kubernetes / "bin"
    figures: list[Figure] = []
    for nodes in arguments.nodes:
        theirs = asyncio.run(measure(programs, False, nodes, arguments.pods))
        ours = asyncio.run(measure(programs, True, nodes, arguments.pods))
        for name, burst, budget in (("kube_scheduler", theirs, None), ("koord_scheduler", ours, POD_MAX_MS)):
            figures.append(Figure(f"{name}_rate_{nodes}_nodes", burst.rate, "pods/s"))
            figures.append(Figure(f"{name}_cpu_{nodes}_nodes", burst.cpu_ms, "ms/pod", budget))
            figures.append(Figure(f"{name}_memory_{nodes}_nodes", burst.memory, "MB"))
        figures.append(Figure(f"rate_ratio_{nodes}_nodes", ours.rate / theirs.rate, "x", RATIO_MIN, at_least=True))
    return report("kubernetes_scheduler", figures)


if __name__ == "__main__":
    sys.exit(main())
