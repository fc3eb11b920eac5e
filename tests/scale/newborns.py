"""How long a sandbox waits for a real koordlet on a node with pods: a hook call over its socket before each pod starts,
which returns when the kernel has the pod's settings. For `bench_proxy.py`.

The node is that of `tests/koordlet/process`: pods as cgroups with processes, a kubelet's /pods, an API server with
NodeSLO, and koordlet in its own view with all plugins and strategies that are enabled by default; ticks and rounds
continue meanwhile. Each call is for a new pod whose directory was just created; the pod stops some calls later.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from pathlib import Path

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import PodSandboxHookRequest
from koordlet.app.http2.client import UnaryClient
from koordlet.app.runner import run
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.fleet import Fleet, Need, PodSpec
from tests.koordlet.process.podtree import PodTree
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.view import View
from tests.koordlet.runtimehooks.hooknode import EXTENDED

SPEC = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}, "lsClass": {"cpuQOS": {"enable": True}}}}
FLAGS = ("--runtime-hooks-settle-timeout=30s", "--runtime-hooks-reconcile-interval=10s", "--kubelet-sync-interval=1s")
LIVE = 10
REST_SECONDS = 0.005
PATIENCE = 60.0
SHARES = "512"
"""cpu.shares of half a core of batch CPU."""


def sandbox_times(pods: int, calls: int) -> list[float]:
    """Milliseconds that each of `calls` sandboxes waited on a node with `pods` pods."""
    tree = PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, 1)
    fleet = Fleet(tree)
    try:
        with tempfile.TemporaryDirectory(prefix="koord-bench-") as name:
            (Path(name) / "view").mkdir()
            view = View(tree, Path(name) / "view")
            scene = Scene(fleet, view, Path(name))
            try:
                fleet.add(*(_pod(number) for number in range(pods)))
                scene.open(SPEC, cpus=2, memory_mib=4096)
                scene.start(*FLAGS)
                scene.settle()
                return run(_ask(scene, calls))
            finally:
                scene.close()
                view.close()
    finally:
        fleet.close()
        tree.remove()


def _pod(number: int) -> PodSpec:
    """Every other pod is best effort; each has two containers."""
    if number % 2:
        batch = Need(batch_cpu=(500, 500), batch_memory=(64, 64))
        return PodSpec(f"batch-{number}", KubeQOS.BESTEFFORT, "BE", (batch, batch))
    need = Need(cpu=(100, 200))
    return PodSpec(f"service-{number}", KubeQOS.BURSTABLE, "LS", (need, need))


async def _ask(scene: Scene, calls: int) -> list[float]:
    tree, took, live = scene.fleet.tree, [], list[tuple[str, bytes]]()
    client = await UnaryClient.connect(str(scene.view.state / "koordlet.sock"), "test")
    try:
        for _ in range(calls):
            uid = str(uuid.uuid4())
            directory = pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BESTEFFORT, uid)
            tree.mkdir(directory)
            request = PodSandboxHookRequest(
                pod_meta={"name": f"new-{uid[:8]}", "namespace": "default", "uid": uid},
                labels={"koordinator.sh/qosClass": "BE"},
                annotations={"node.koordinator.sh/extended-resource-spec": EXTENDED},
                cgroup_parent=f"/{directory}",
            ).SerializeToString()
            await asyncio.sleep(REST_SECONDS)
            began = time.perf_counter()
            await client.call(f"/{SERVICE}/PreRunPodSandboxHook", request, PATIENCE)
            took.append((time.perf_counter() - began) * 1e3)
            if (tree.path("cpu", directory) / "cpu.shares").read_text().strip() != SHARES and not tree.v2:
                raise SystemExit("koordlet answered before the kernel held what the pod gets")
            live.append((directory, request))
            if len(live) > LIVE:
                gone, stop_request = live.pop(0)
                await client.call(f"/{SERVICE}/PostStopPodSandboxHook", stop_request, PATIENCE)
                tree.rmdir(gone)
    finally:
        await client.close(0.0)
    return took
