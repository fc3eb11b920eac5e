"""`make bench-kubernetes`: what koordlet costs under a real kubelet, with its pages scraped and /top open.

It runs in the namespaces of enter.sh: many pods with two containers each, which wake up once per second, everything
installed as shipped. The CPU time of each of koordlet's tasks is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from scripts.install import archive as images
from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.conftest import BUILD, keep_logs
from tests.kubernetes.installation import NAMESPACE, get, install
from tests.kubernetes.node import ROOT, import_image
from tests.kubernetes.processes import wait_for
from tests.processmemory import resident_mib
from tests.scale.bench_koordlet import busy_share, measure, task_cpu
from tests.scale.figures import Figure, report
from tests.scale.pageclient import PageClient

PORT = 9316
SETTLE_S = 60.0
START_TIMEOUT_S = 600.0
CPU_MAX_PERCENT, MEMORY_MAX_MB = 1.0, 85.0


def pods(replicas: int) -> str:
    """A Deployment of pods with two containers."""
    container = {
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "while sleep 1; do :; done"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    labels = {"app": "filler"}
    pod = {
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": name, **container} for name in ("one", "two")],
    }
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    meta = {"name": "filler", "namespace": "default"}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})


def koordlet_pid() -> int:
    """The namespaces hide all other koordlets."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        arguments = path.read_bytes().split(b"\0")
        if any(argument.endswith(b"/koordlet") for argument in arguments[:2]):
            return int(path.parent.name)
    raise SystemExit("koordlet does not run")


def run(cluster: Kubernetes, replicas: int, seconds: float) -> int:
    archive = cluster.folder / "koordinator.tar"
    images.write(archive)
    import_image(archive)
    archive.unlink()
    install(cluster)
    cluster.kubectl("apply", "-f", "-", text=pods(replicas))

    def running() -> int:
        items = get(cluster, "pods", "-l", "app=filler")["items"]
        return sum(pod["status"].get("phase") == "Running" for pod in items)

    begun = time.monotonic()
    wait_for(lambda: running() == replicas, f"{replicas} pods run on {NODE}", START_TIMEOUT_S)
    print(f"# {replicas} pods x 2 containers run after {time.monotonic() - begun:.0f} s", flush=True)
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/koordlet", "--timeout=150s")
    time.sleep(SETTLE_S)
    pages, pid = PageClient(PORT, cluster.tokens["admin"]), koordlet_pid()
    ticks, before = Path("/proc/stat").read_text(), task_cpu(pages.get("/internal-metrics"))
    scraped = measure(pages.get, pid, seconds, top=False)
    gained = {name: total - before.get(name, 0.0) for name, total in task_cpu(pages.get("/internal-metrics")).items()}
    for name, used in sorted(gained.items(), key=lambda item: -item[1])[:10]:
        print(f"# task {name:28} {100 * used / seconds:5.2f} % of a core", flush=True)
    watched = measure(pages.get, pid, seconds, top=True)
    busy = busy_share(ticks, Path("/proc/stat").read_text())
    print(f"# all CPUs of the machine were {busy:.0f} % busy", flush=True)
    return report(
        "kubernetes_node",
        [
            Figure("koordlet_real_node_cpu", scraped, "%_of_a_core", CPU_MAX_PERCENT),
            Figure("koordlet_real_node_cpu_with_top", watched, "%_of_a_core"),
            Figure("koordlet_real_node_resident", resident_mib(pid), "MB", MEMORY_MAX_MB),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=105)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "build/kubernetes", prefix="bench-") as folder:
        cluster = Kubernetes(Path(folder), BUILD / os.environ["KOORD_KUBERNETES"] / "bin")
        try:
            cluster.start()
            return run(cluster, options.pods, options.seconds)
        finally:
            cluster.stop()
            keep_logs(cluster.folder)


if __name__ == "__main__":
    sys.exit(main())
