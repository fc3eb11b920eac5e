"""How long pods wait for koord-manager's admission: /mutate-pod and /validate-pod at a steady rate over HTTPS.

Run: `python tests/scale/bench_webhook.py [--rate 200] [--seconds 20] [--profiles 50]`. The server is a process of its
own, the real one, with caches as in a cluster of that many profiles and namespaces; requests are sent when they are
due (an open loop, so that a slow answer does not slow the questions), first a mutation, then the validation of its
kind of pod. Times run from when a request was due to its whole answer. Half of the pods become best effort.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.manager.caches import Caches
from control.manager.config import ConfigCache
from control.manager.context import Context
from control.manager.options import Options
from control.manager.webhook.certificates import make
from control.manager.webhook.certstore import FileStore
from control.manager.webhook.server import WebhookServer
from control.manager.webhooks.mutatehooks import MutatePod
from control.manager.webhooks.validatehooks import ValidatePod
from koordlet.api import gates as api_gates
from koordlet.api.config import ClusterColocationProfile
from koordlet.api.core import Namespace, PriorityClass
from koordlet.api.priority import BANDS
from koordlet.api.quota import ElasticQuota
from koordlet.api.wire import convert
from koordlet.app.flags import read
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, Config, EventRecorder
from tests.scale.figures import Figure, report

NAMESPACES = 200
QUOTAS = 200
WARM_SECONDS = 2.0


def context(profiles: int) -> Context:
    """As the process has it, with full caches and without an API server."""
    framework, internal = CollectorRegistry(), CollectorRegistry()
    client = Client(Config(server="http://127.0.0.1:1"), registry=framework)
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
    return Context(read(Options, []), gates, client, caches, config, events, framework, internal, CollectorRegistry())


async def serve(folder: Path, profiles: int) -> None:
    """The server's process: prints its port, runs until SIGTERM."""
    made = context(profiles)
    FileStore(folder).replace(make("localhost", datetime.now(UTC)))
    server = WebhookServer(folder, host="127.0.0.1", port=0, registry=made.framework)
    server.register(MutatePod(made))
    server.register(ValidatePod(made))
    await server.start()
    print(server.port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop()
    await made.client.close()


def pod(number: int) -> dict[str, Any]:
    """A pod as a Deployment makes it, 5 to 6 KB of JSON."""
    containers = [
        {
            "name": f"container-{one}",
            "image": "registry/some/image:v1",
            "command": ["/bin/run", "--flag=value"],
            "env": [{"name": f"VARIABLE_{index}", "value": "some value"} for index in range(20)],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }
        for one in range(3)
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


async def ask(port: int, ca: Path, rate: float, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each answer, by path."""
    tls = ssl.create_default_context(cafile=str(ca))
    times: dict[str, list[float]] = {"/mutate-pod": [], "/validate-pod": []}
    paths, bodies = list(times), [review(number) for number in range(400)]
    wrong = 0
    tasks: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls)) as session:

        async def one(number: int, due: float, *, counts: bool) -> None:
            nonlocal wrong
            path = paths[number % 2]
            headers = {"Content-Type": "application/json"}
            url = f"https://localhost:{port}{path}"
            async with session.post(url, data=bodies[number // 2 % len(bodies)], headers=headers) as answer:
                response = (await answer.json())["response"]
            if counts:
                times[path].append((time.perf_counter() - due) * 1e3)
            wrong += not response["allowed"] or (path == "/mutate-pod" and number // 2 % 2 and "patch" not in response)

        began = time.perf_counter()
        for number in range(int((WARM_SECONDS + seconds) * rate)):
            due = began + number / rate
            delay = due - time.perf_counter()
            await asyncio.sleep(max(0.0, delay))
            task = asyncio.create_task(one(number, due, counts=number >= WARM_SECONDS * rate))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    if wrong:
        raise SystemExit(f"{wrong} answers were not as they should be")
    return times


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--profiles", type=int, default=50)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve, args.profiles))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, f"--serve={folder}", f"--profiles={args.profiles}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                process = psutil.Process(server.pid)
                before, began = sum(process.cpu_times()[:2]), time.perf_counter()
                times = asyncio.run(ask(port, Path(folder) / "ca-cert.pem", args.rate, args.seconds))
                cores = (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - began)
                resident = process.memory_info().rss / 2**20
            finally:
                with contextlib.suppress(ProcessLookupError):
                    server.terminate()
    figures = []
    for path, values in times.items():
        name = path.strip("/").replace("-", "_")
        figures.append(Figure(f"webhook_{name}_p50", quantile(values, 0.5), "ms"))
        figures.append(Figure(f"webhook_{name}_p99", quantile(values, 0.99), "ms", 5.0))
    figures.append(Figure("webhook_server_cpu", cores, "cores"))
    figures.append(Figure("webhook_server_resident", resident, "MiB"))
    return report("webhook", figures)


if __name__ == "__main__":
    sys.exit(main())
