"""Pods placed through the embedded API server, for the scheduler's benchmark.

The server runs in this process, the scheduler in another one, so that each has a core. Measured from the first pod that
has a node to the last one, as a user sees it, the server's work included.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from control.manager import manifests as manager
from control.scheduler.config.shipped import SCHEDULER, configuration
from control.standalone.apiserver import ApiServer
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import crdgen
from koordlet.kube import Client, ClientConfig, Informer, PatchKind

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0
AT_ONCE = 16


@dataclass(frozen=True)
class Bound:
    """`seconds`: from the first observed binding to the last."""

    pods: int
    seconds: float


async def place(nodes: int, pods: int, qps: int) -> Bound:
    """`qps`: the scheduler's limit of requests per second; 0: that of its configuration (50)."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        async with (
            ApiServer(here / "api") as server,
            Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
        ):
            await _prepare(admin, nodes, pods)
            watched = Informer(admin, Pod)
            when: list[float] = []

            def told(old: Pod, new: Pod) -> None:
                if new.spec.node_name and not old.spec.node_name:
                    when.append(time.perf_counter())

            watched.add_handler(on_update=told)
            await watched.start()
            await watched.synced.wait()
            process = await _scheduler(here, server.kubeconfig_path, qps)
            try:
                async with asyncio.timeout(SECONDS):
                    while len(when) < pods:
                        assert process.returncode is None, "the scheduler ended"
                        await asyncio.sleep(0.1)
            except TimeoutError:
                pass  # visible in the figures
            finally:
                process.send_signal(signal.SIGTERM)
                await process.wait()
                await watched.stop()
    return Bound(len(when), when[-1] - when[0] if len(when) > 1 else float("inf"))


async def _prepare(admin: Client, nodes: int, pods: int) -> None:
    for obj in (*crdgen.documents().values(), *manager.namespace()):
        version, name, kind = obj["apiVersion"], obj["metadata"]["name"], obj["kind"].lower() + "s"
        path = f"/{'apis' if '/' in version else 'api'}/{version}/{kind}/{name}"
        params = {"fieldManager": "bench", "force": "true"}
        await admin.raw("PATCH", path, params=params, body=obj, content_type=PatchKind.APPLY.value, repeatable=True)

    async def node(number: int) -> None:
        name = f"node-{number}"
        labels = {"topology.kubernetes.io/zone": f"zone-{number % 5}"}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        await admin.raw("POST", "/api/v1/nodes", body=body)
        amounts = {"cpu": "32", "memory": "256Gi", "pods": "256"}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        await admin.patch(Node, name, body={"status": status}, subresource="status")
        await admin.patch(Node, name, body={"spec": {"taints": None}})

    async def pod(number: int) -> None:
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}
        spec = {"schedulerName": SCHEDULER, "containers": [container]}
        meta = {"name": f"pod-{number}", "labels": {"app": "web"}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await admin.raw("POST", "/api/v1/namespaces/default/pods", body=body)

    for make, count in ((node, nodes), (pod, pods)):
        for begin in range(0, count, AT_ONCE):
            await asyncio.gather(*(make(number) for number in range(begin, min(begin + AT_ONCE, count))))


async def _scheduler(here: Path, kubeconfig: Path | str, qps: int) -> asyncio.subprocess.Process:
    path = here / "config.yaml"
    path.write_text(yaml.safe_dump(configuration()))
    limits = (f"--kube-api-qps={qps}", f"--kube-api-burst={qps}") if qps else ()
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.scheduler", f"--config={path}", f"--kubeconfig={kubeconfig}", "--port=0",
        "--secure-port=0", *limits, cwd=ROOT, env={**os.environ, "HOME": "/nonexistent"},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
