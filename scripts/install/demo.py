"""Installs the images of this checkout on the embedded cluster, uses them, and removes everything: `make demo-install`.

Each step runs the commands of docs/install.md and checks their effect. tests/kubernetes/run.sh starts this module in
mount, network and process namespaces of its own, so that nothing of it reaches the machine's files and ports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from control.ctl.demo import colocation
from control.ctl.demo.kernelfiles import find_group
from control.ctl.demo.workload import Kubectl
from control.ctl.errors import CtlError
from control.ctl.node import containers
from control.ctl.node.down import down
from control.ctl.node.parts import Layout
from control.ctl.node.up import up
from control.ctl.progress import TerminalProgress
from scripts.install import archive

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = str(ROOT / "deploy/embedded")
NODE = "embedded"
NAMESPACE = "koordinator-system"
WORKLOADS = ("deployment/koord-manager", "deployment/koord-scheduler", "daemonset/koordlet")
KINDS = "crd,clusterrole,clusterrolebinding,priorityclass,mutatingwebhookconfiguration,validatingwebhookconfiguration"
OURS = ("koord", "scheduling.sigs", "topology.node")
OURS_NOT_INSTALLED = "koord-kubelet"
"""The account of the cluster's own kubelet."""
TIMEOUT_S = 300.0
BATCH = """
apiVersion: v1
kind: Namespace
metadata: {name: reports}
---
apiVersion: config.koordinator.sh/v1alpha1
kind: ClusterColocationProfile
metadata: {name: reports}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: reports}}
  schedulerName: koord-scheduler
  qosClass: BE
  priorityClassName: koord-batch
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: report, namespace: reports}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox
    command: [sh, -c, "while :; do :; done"]
    resources: {requests: {cpu: 200m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}
"""


class InstallDemo:
    """One run. A step that does not show what it should raises CtlError."""

    def __init__(self, folder: Path, progress: TerminalProgress) -> None:
        self._folder = folder
        self._progress = progress
        self.state_dir = folder / "state"
        self._layout = Layout(self.state_dir)
        self.kubectl = Kubectl(self._layout.admin_kubeconfig, folder / "kubectl-cache")

    def start_cluster(self) -> None:
        self._title(f"koordctl up --bare --node-name {NODE}")
        options: dict[str, object] = {"node_name": NODE, "bare": True}
        asyncio.run(up(self.state_dir, options, progress=self._progress))

    def import_images(self, images: Path | None) -> None:
        self._title("The images")
        if images is None:
            images = self._folder / "images.tar"
            with self._progress.step("make images ARCHIVE=1") as step:
                archive.write(images)
                step.done(f"{images.stat().st_size / 1e6:.0f} MB")
        socket = containers.folder(self.state_dir).socket
        with self._progress.step("ctr -n k8s.io images import images.tar") as step:
            command = ["ctr", "--address", str(socket), "--namespace", "k8s.io", "images", "import", str(images)]
            subprocess.run(command, check=True, capture_output=True)
            step.done("into the node's containerd")

    def install(self) -> None:
        self._title("kubectl apply -k deploy/embedded")
        with self._progress.step("apply") as step:
            step.done(f"{len(self.kubectl.run('apply', '-k', OVERLAY).splitlines())} objects")
        for workload in WORKLOADS:
            began = time.monotonic()
            with self._progress.step(workload) as step:
                self._rolled_out(workload)
                step.done(f"ready after {time.monotonic() - began:.0f} s more")
        self._show("get", "pods", "-A", "-o", "wide")

    def overcommit(self) -> None:
        self._title("Unused capacity, for a batch pod")
        self._wait(lambda: bool(self._ready_webhooks()), "the manager registers its webhooks")
        self.kubectl.run("apply", "-f", self._file("batch.yaml", BATCH))
        self._wait(self._offers, f"node {NODE} offers batch resources")
        pod = self._file("report.yaml", POD)
        self.kubectl.run("wait", "-n", "reports", "--for=create", "sa/default", "--timeout=60s")
        self._wait(lambda: self._admitted(pod), "the manager applies the profile")
        self.kubectl.run("apply", "-f", pod)
        self.kubectl.run("wait", "-n", "reports", "--for=condition=Ready", "pod/report", "--timeout=120s", seconds=150)
        stored = self.kubectl.get("pod", "report", "-n", "reports")
        for verdict in (colocation.admitted(stored), colocation.scheduled(stored, NODE)):
            self._check(verdict.ok, verdict.text)
        groups = [find_group(stored["metadata"]["uid"], name) for name in ("cpu", "memory")]
        cpu, memory = groups
        if cpu is None or memory is None:
            raise CtlError("no kubepods cgroup of report exists")
        self._wait(
            lambda: colocation.placed(stored, cpu, memory).ok, "koordlet writes the batch resources to the cgroup"
        )
        self._progress.good(colocation.placed(stored, cpu, memory).text)

    def show(self) -> None:
        self._title("What runs where")
        self._wait(lambda: "report" in self._top("--namespace=reports"), "koordlet reports the batch pod")
        for arguments in ((), ("--namespace=reports",)):
            self._progress.say(f"$ kubectl koord top --once {' '.join(arguments)}")
            self._progress.say(self._top(*arguments))
        self._show("get", "nodemetric")

    def run(self, command: str) -> int:
        """Run a shell command on the cluster; its exit status."""
        self._title("With KUBECONFIG of the cluster")
        sys.stdout.flush()
        return subprocess.run(
            ["sh", "-c", command], env=self._environ(), check=False, stdin=subprocess.DEVNULL
        ).returncode

    def open_shell(self) -> None:
        """An interactive shell with kubectl, koordctl and KUBECONFIG; returns when it ends."""
        self._title("A shell on the cluster, until its end: kubectl, kubectl koord and koordctl work")
        sys.stdout.flush()
        os.environ.update(self._environ())
        pty.spawn([os.environ.get("SHELL", "/bin/bash")])  # this terminal belongs to a process of another PID namespace

    def uninstall(self) -> None:
        self._title("kubectl delete -k deploy/embedded --ignore-not-found")
        self.kubectl.run("delete", "-f", str(self._folder / "batch.yaml"), "--timeout=120s", seconds=150)
        with self._progress.step("delete") as step:
            self.kubectl.run("delete", "-k", OVERLAY, "--ignore-not-found", "--timeout=240s", seconds=280)
            step.done("finished")
        left = self.left_in_cluster()
        self._check(not left, f"objects left in the cluster: {', '.join(left) or 'none'}")

    def left_in_cluster(self) -> list[str]:
        names = self.kubectl.run("get", KINDS, "-o", "name").split()
        names += self.kubectl.run("get", "namespace", NAMESPACE, "-o", "name", "--ignore-not-found").split()
        names += self.kubectl.run("get", "pods", "-A", "-o", "name").split()
        ours = [name for name in names if name.startswith("pod/") or any(part in name for part in OURS)]
        return [name for name in ours if not name.endswith(f"/{OURS_NOT_INSTALLED}")]

    def stop(self) -> list[str]:
        """End the cluster; descriptions of what is left."""
        self._title("koordctl down --purge")
        remaining = down(self.state_dir, purge=True, progress=self._progress)
        for line in remaining.lines():
            (self._progress.bad if "left:" in line else self._progress.good)(line)
        return [line for line in remaining.lines() if "left:" in line]

    def keep_logs(self) -> None:
        """Print the ends of all logs, before `stop` removes them."""
        for log in sorted([*self.state_dir.glob("logs/*.log"), *self.state_dir.glob("kubelet/pods/*/logs/*/*.log")]):
            self._progress.say(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}")

    def _rolled_out(self, workload: str) -> None:
        arguments = ("-n", NAMESPACE, "rollout", "status", workload, f"--timeout={TIMEOUT_S:.0f}s")
        self.kubectl.run(*arguments, seconds=TIMEOUT_S + 30)

    def _ready_webhooks(self) -> list[object]:
        name = "koordinator-mutating-webhook-configuration"
        return list(self.kubectl.get("mutatingwebhookconfiguration", name).get("webhooks") or ())

    def _offers(self) -> bool:
        return colocation.offers_batch_resources(self.kubectl.get("node", NODE)).ok

    def _admitted(self, pod: str) -> bool:
        stored = self.kubectl.run("create", "--dry-run=server", "-o", "json", "-f", pod)
        return colocation.admitted(json.loads(stored)).ok

    def _top(self, *arguments: str) -> str:
        """The plugin, as kubectl finds it on PATH; empty while koordlet has no figures."""
        environ = {**self._environ(), "COLUMNS": "120"}
        command = [str(self.kubectl.path), "koord", "top", "--once", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=False)
        return done.stdout if done.returncode == 0 else ""

    def _environ(self) -> dict[str, str]:
        """With the cluster's kubeconfig, and with kubectl's plugin on PATH."""
        return {
            **os.environ,
            "KUBECONFIG": str(self._layout.admin_kubeconfig),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def _file(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._progress.step(what) as step:
            end = time.monotonic() + TIMEOUT_S
            while not condition():
                if time.monotonic() > end:
                    raise CtlError(f"not within {TIMEOUT_S:.0f} s: {what}")
                time.sleep(0.5)
            step.done("yes")

    def _check(self, good: bool, text: str) -> None:
        if not good:
            raise CtlError(text)
        self._progress.good(text)

    def _title(self, words: str) -> None:
        self._progress.console.print(f"\n[bold]{words}[/]", markup=True)

    def _show(self, *arguments: str) -> None:
        self._progress.say(f"$ kubectl {' '.join(arguments)}")
        self._progress.say(self.kubectl.run(*arguments).rstrip())


def play(folder: Path, progress: TerminalProgress, images: Path | None, *, once: bool, then: str = "") -> list[str]:
    """Run all steps; returns the problems. `then`: a shell command before the uninstallation."""
    demo = InstallDemo(folder, progress)
    problems: list[str] = []
    began = time.monotonic()
    try:
        demo.start_cluster()
        demo.import_images(images)
        demo.install()
        demo.overcommit()
        demo.show()
        if not once:
            demo.open_shell()
        if then and (status := demo.run(then)):
            problems.append(f"the command ended with status {status}")
        demo.uninstall()
    except (CtlError, subprocess.SubprocessError) as error:
        problems.append(str(error))
        progress.bad(str(error))
        demo.keep_logs()
    finally:
        problems += demo.stop()
    progress.say(f"\n{'All checks passed' if not problems else 'Failed'} ({time.monotonic() - began:.0f} s).")
    return problems


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make demo-install")
    parser.add_argument("--once", action="store_true", help="end by itself")
    parser.add_argument("--then", default="", help="a shell command to run on the cluster before the uninstallation")
    parser.add_argument("--images", type=Path, help="an archive of `make images ARCHIVE=1`; default: make one")
    args = parser.parse_args(argv)
    if not os.environ.get("KOORD_ENTERED"):
        parser.error("start it with `make demo-install`: it needs the namespaces of tests/kubernetes/run.sh")
    with tempfile.TemporaryDirectory(prefix="install-", dir=ROOT / "build/kubernetes") as folder:
        return 1 if play(Path(folder), TerminalProgress(), args.images, once=args.once, then=args.then) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
