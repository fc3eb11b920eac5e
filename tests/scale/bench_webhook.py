"""Latency of koord-manager's admission: /mutate-pod and /validate-pod at a steady rate over HTTPS.

Run: `python tests/scale/bench_webhook.py [--rate 200] [--seconds 20] [--profiles 50] [--nodes 5000 --pods 100000]`. The
server is the real one in a separate process, with caches for that many profiles and namespaces. Requests are sent when
they are due (an open loop, so that slow responses do not delay requests): a mutation, then a validation of its kind of
pod. Times run from a request's due time to its complete response. Half of the pods become best effort. Two runs:
`webhook_…` is the server alone, as on a replica that is not leader; `webhook_leading_…` has the noderesource controller
on the same event loop, with that many nodes and pods in its caches, all nodes computed every five seconds (30 s in a
cluster), a report per node and minute, and its metrics page read every five seconds.

On a shared machine tail latency depends on other work. So a control is called in the same run, from the same loop, half
an interval after each request: a TLS server without HTTP framework in a third process, which echoes the body.
`…_control_…` are its times, `…_p99_to_control` the ratio of the webhook's p99 to the control's, and
`…_machine_share_of_tail` the part of the webhook's p99 that the control also has: near 1, the figure is about the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.context import ManagerContext
from control.manager.noderesource.controller import NodeResourceController
from control.manager.options import ManagerOptions
from control.manager.webhooks.mutatehooks import MutatePod
from control.manager.webhooks.validatehooks import ValidatePod
from control.manager.webhookserver.certificates import make
from control.manager.webhookserver.certstore import FileStore
from control.manager.webhookserver.server import WebhookServer
from koordlet.api import gates as api_gates
from koordlet.api.core import Namespace, PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import convert, encode, json_decoder
from koordlet.api.priority import BANDS
from koordlet.api.sloconfig import configmap
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.app.heap import freeze_heap
from koordlet.app.http import HttpServer
from koordlet.app.loopslice import yield_to_loop
from koordlet.app.runner import run
from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, ClientConfig, EventRecorder
from tests.scale.bench_manager import objects, pretend_written
from tests.scale.figures import Figure, report
from tests.scale.webhookload import CONTROL, Asker, echo

NAMESPACES = 200
QUOTAS = 200


def context(profiles: int) -> ManagerContext:
    """As in the process, with full caches and without an API server."""
    framework, internal = CollectorRegistry(), CollectorRegistry()
    client = Client(ClientConfig(server="http://127.0.0.1:1"), registry=framework)
    events = EventRecorder(client, "bench")
    config = ConfigCache(client, events, namespace="koordinator-system", name="slo", registry=internal)
    caches, gates = Caches(client), FeatureGates(api_gates.MANAGER)
    objects: list[Any] = [
        convert({"metadata": {"name": name}, "value": band.low}, PriorityClass) for name, band in BANDS.items()
    ]
    for number in range(NAMESPACES):
        meta = {"name": f"team-{number}", "labels": {"colocation": "true" if number % 2 else "false"}}
        objects.append(convert({"metadata": meta}, Namespace))
    for number in range(QUOTAS):
        meta = {"name": f"team-{number}", "namespace": f"team-{number}"}
        objects.append(convert({"metadata": meta, "spec": {"max": {"cpu": "10"}}}, ElasticQuota))
    for number in range(profiles):
        spec = {
            "namespaceSelector": {"matchLabels": {"colocation": "true"}},
            "selector": {"matchLabels": {"kind": f"job-{number}"}},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
            "koordinatorPriority": 1000,
            "schedulerName": "koord-scheduler",
            "labels": {"koordinator.sh/mutated": "true"},
            "patch": {"spec": {"terminationGracePeriodSeconds": 30}},
        }
        objects.append(convert({"metadata": {"name": f"profile-{number}"}, "spec": spec}, ClusterColocationProfile))
    for obj in objects:
        caches.informer(type(obj)).store.put(obj.metadata.key, obj)
    return ManagerContext(
        read(ManagerOptions, []), gates, client, caches, config, events, framework, internal, CollectorRegistry()
    )


async def serve(folder: Path, profiles: int, nodes: int, pods: int) -> None:
    """The server process: prints its port and runs until SIGTERM."""
    manager_context = context(profiles)
    controller = NodeResourceController(manager_context) if nodes else None
    if controller is not None:
        fill(controller, nodes, pods)
    reports = [encode(report) for report in manager_context.caches.informer(NodeMetric).list()]
    server = WebhookServer(folder, host="127.0.0.1", port=0, registry=manager_context.framework)
    server.register(MutatePod(manager_context))
    server.register(ValidatePod(manager_context))
    await server.start()
    freeze_heap()  # as the process does when its caches are filled
    print(server.port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    work = asyncio.create_task(lead(controller, reports) if controller is not None else asyncio.sleep(0))
    await ended.wait()
    await end_tasks(work)
    await server.stop()
    await manager_context.client.close()


def fill(controller: NodeResourceController, nodes: int, pods: int) -> None:
    """A cluster in the caches, in which everything is written already."""
    context = controller.context
    for kind, raw in objects(nodes, pods):
        obj = json_decoder(kind).decode(raw)
        context.caches.informer(kind)._take(obj)
    context.config._current, _ = configmap.load(configmap.UNREAD, {"colocation-config": '{"enable": true}'})
    pretend_written(controller, sorted(controller.table.nodes))


async def lead(controller: NodeResourceController, reports: list[bytes]) -> None:
    """A leader's other work: computing all nodes, incoming reports, metrics pages."""
    context = controller.context
    metrics = context.caches.informer(NodeMetric)
    pages = HttpServer("127.0.0.1:0", registries={"/internal-metrics": (context.internal,)}, sliced=True)
    await pages.start()

    async def hear() -> None:
        """Two watch events at once, forty times per second: 5,000 nodes report once per minute."""
        number, decoder = 0, json_decoder(NodeMetric)
        while True:
            for _ in range(max(1, len(reports) // 2400)):
                obj = decoder.decode(reports[number % len(reports)])
                number += 1
                obj.metadata.resource_version = str(1 + number)
                metrics._take(obj)
                await yield_to_loop()
            await asyncio.sleep(0.025)

    async def everything() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(5.0)
                controller._mark_all()
                async with session.get(f"{pages.url}/internal-metrics") as answer:
                    await answer.read()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(controller._sweep_loop())
            group.create_task(hear())
            group.create_task(everything())
    finally:
        await pages.stop()


def pod(number: int) -> dict[str, Any]:
    """A pod as a Deployment creates it, 5 to 6 KB of JSON."""
    containers = [
        {
            "name": f"container-{number}",
            "image": "registry/some/image:v1",
            "command": ["/bin/run", "--flag=value"],
            "env": [{"name": f"VARIABLE_{index}", "value": "some value"} for index in range(20)],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }
        for number in range(3)
    ]
    labels = {"app": f"app-{number}", "kind": f"job-{number % 50}", "pod-template-hash": "5b8c"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": f"team-{number % NAMESPACES}", "labels": labels},
        "spec": {
            "containers": containers,
            "volumes": [{"name": "data", "emptyDir": {}}],
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "priority": 0,
        },
    }


def review(number: int) -> bytes:
    """The AdmissionReview that an API server sends for the pod."""
    obj = pod(number)
    request = {
        "uid": f"uid-{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": obj["metadata"]["name"],
        "namespace": obj["metadata"]["namespace"],
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
    }
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def wrong(path: str, number: int, response: Any) -> bool:
    """Every pod is admitted, and every second one is in a namespace with profiles."""
    return not response["allowed"] or (path == "/mutate-pod" and number % 2 == 1 and "patch" not in response)


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[tuple[psutil.Process, int]]:
    """A server process, and its port."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *arguments], stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            assert started.stdout is not None
            yield psutil.Process(started.pid), int(started.stdout.readline())
        finally:
            with contextlib.suppress(ProcessLookupError):
                started.terminate()


def measure(prefix: str, args: argparse.Namespace, nodes: int, pods: int) -> list[Figure]:
    """Figures of one kind of server."""
    with tempfile.TemporaryDirectory() as folder:
        FileStore(Path(folder)).replace(make("localhost", datetime.now(UTC)))
        own = (f"--serve={folder}", f"--profiles={args.profiles}", f"--nodes={nodes}", f"--pods={pods}")
        with process(*own) as (server, port), process(f"--control={folder}") as (_, control):
            asker = Asker(port, control, Path(folder) / "ca-cert.pem", [review(number) for number in range(400)], wrong)
            before, began = sum(server.cpu_times()[:2]), time.perf_counter()
            freeze_heap()
            run(asker.run(["/mutate-pod", "/validate-pod"], args.rate, args.seconds))
            cores = (sum(server.cpu_times()[:2]) - before) / (time.perf_counter() - began)
            resident = server.memory_info().rss / 2**20
    if asker.failed:
        raise SystemExit(f"{asker.failed} answers were not as they should be")
    machine = asker.times.pop(CONTROL)
    tail = quantile(machine, 0.99)
    figures = []
    for path, values in asker.times.items():
        name, p99 = f"{prefix}_{path.strip('/').replace('-', '_')}", quantile(values, 0.99)
        figures.append(Figure(f"{name}_p50", quantile(values, 0.5), "ms"))
        figures.append(Figure(f"{name}_p99", p99, "ms", 5.0))
        figures.append(Figure(f"{name}_p99_to_control", p99 / tail, "times"))
        figures.append(Figure(f"{name}_machine_share_of_tail", min(tail / p99, 1.0), "of 1"))
    return [
        *figures,
        Figure(f"{prefix}_control_p50", quantile(machine, 0.5), "ms"),
        Figure(f"{prefix}_control_p99", tail, "ms"),
        Figure(f"{prefix}_server_cpu", cores, "cores"),
        Figure(f"{prefix}_server_resident", resident, "MiB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--profiles", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=5000, help="0: only the server alone")
    parser.add_argument("--pods", type=int, default=100000)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--control", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        run(serve(args.serve, args.profiles, args.nodes, args.pods))
        return 0
    if args.control is not None:
        run(echo(args.control))
        return 0
    figures = measure("webhook", args, 0, 0)
    if args.nodes:
        figures += measure("webhook_leading", args, args.nodes, args.pods)
    return report("webhook", figures)


if __name__ == "__main__":
    sys.exit(main())
