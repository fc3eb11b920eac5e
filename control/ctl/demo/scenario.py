"""The demo's steps, in order. Each shows something and checks it. A failed check is recorded, not raised, so that the
remaining steps still run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from control.ctl.demo import colocation, judge, overcommit, workload
from control.ctl.demo.judge import DemoResult
from control.ctl.demo.kernelfiles import Sampler, average, find_group, find_pod
from control.ctl.demo.neighbour import NeighbourMove
from control.ctl.demo.stage import AGGREGATE_S, REPORT_TIMEOUT_S, TOP_TIMEOUT_S, DemoStage
from control.ctl.errors import CtlError
from control.ctl.node.containers import AUTO
from control.ctl.pagecommands import print_explanation, print_placement, print_top
from control.ctl.progress import TerminalProgress
from control.ctl.views.koordletclient import fetch_explanation
from control.ctl.views.overcommit import overcommit_of
from control.ctl.views.overcommit import page as node_page
from control.ctl.views.placement import fetch_placement
from koordlet.api.core import Node, Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import Time, convert
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.api.pages.interference import PodInterferenceReport
from koordlet.api.pages.top import Top
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.kube import Client, ClientConfig

PROFILE_TIMEOUT_S = 20.0
"""Longest time until the manager applies a new profile."""
OVERCOMMIT_COLUMNS = "custom-columns=NODE:.metadata.name," + ",".join(
    f"{name.upper()}:.status.allocatable.kubernetes\\.io/{name}"
    for name in ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")
)
METRIC_COLUMNS = (
    "NODE:.metadata.name,CPU:.status.nodeMetric.nodeUsage.resources.cpu,"
    "MEMORY:.status.nodeMetric.nodeUsage.resources.memory,SYSTEM-CPU:.status.nodeMetric.systemUsage.resources.cpu,"
    "PODS:.status.podsMetric[*].name,POD-CPU:.status.podsMetric[*].podUsage.resources.cpu,UPDATED:.status.updateTime"
)


class Scenario(DemoStage):
    """One run; `failures`: the failed checks."""

    def __init__(self, folder: Path, progress: TerminalProgress, runtime: str = AUTO) -> None:
        super().__init__(folder, progress, runtime)
        self.sampler: Sampler | None = None
        self._watched_from = 0.0

    def run(self) -> None:
        """Run all steps. Raises CtlError when one cannot run at all."""
        self.bring_up()
        self.start_pods()
        self.watch()
        self.show_cluster()
        self.show_processes()
        self.show_top()
        self.show_explanation()
        self.show_metrics()  # its 60 s pass during the steps before, too
        self.show_colocation()
        self.show_overcommit()
        self.stop()  # the sampled pods end in the next step
        NeighbourMove(self).show()

    def stop(self) -> None:
        if self.sampler is not None:
            self.sampler.stop()
            self.sampler = None

    # Steps

    def bring_up(self) -> None:
        self.title("A Kubernetes API server and this machine as its node")
        self.up(without=["koordlet"])

    def start_pods(self) -> None:
        shared, other = workload.cores()
        self.title(f"A latency-sensitive pod and two batch pods on core {shared}, and one with a CPU quota")
        folder = self.folder / "workload"
        workload.write(folder, workload.rendered(self.settings.node_name, shared, other))
        with self.progress.step("kubectl apply -f deploy/demo") as step:
            self.kubectl.run("apply", "-f", str(folder / "namespace.yaml"))
            # Pods are refused until a controller has created the namespace's service account.
            self.kubectl.run("wait", "-n", workload.NAMESPACE, "--for=create", "sa/default", "--timeout=20s")
            output = self.kubectl.run("apply", "-f", str(folder))
            step.done(f"{len(output.splitlines())} objects")
        with self.progress.step("kubectl wait --for=condition=Ready pods") as step:
            self.kubectl.run(
                "wait", "-n", workload.NAMESPACE, "--for=condition=Ready", "pods", "--all", "--timeout=60s"
            )
            step.done(", ".join(workload.PODS))

    def watch(self) -> None:
        self.title("koordlet observes the pods with eBPF")
        pods = self.kubectl.get("pods", "-n", workload.NAMESPACE)["items"]
        files = {pod["metadata"]["name"]: find_pod(pod["metadata"]["uid"]) for pod in pods}
        missing = [name for name, paths in files.items() if paths is None]
        if missing:
            raise CtlError(f"no kubepods cgroup of {', '.join(missing)} exists", self.logs("kubelet"))
        self.sampler = Sampler({name: paths for name, paths in files.items() if paths is not None})
        self._watched_from = time.monotonic()
        self.up(without=[])

    def show_cluster(self) -> None:
        self.title("The Kubernetes objects")
        self.show("get", "nodes,pods", "-A", "-o", "wide")
        node = self.kubectl.get("node", self.settings.node_name)
        ready = {c["type"]: c["status"] for c in node["status"]["conditions"]}.get("Ready")
        self.judge(DemoResult(ready == "True", f"node {self.settings.node_name} is Ready: {ready}"))
        pods = self.kubectl.get("pods", "-n", workload.NAMESPACE)["items"]
        phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in pods}
        good = sorted(phases) == sorted(workload.PODS) and set(phases.values()) == {"Running"}
        self.judge(DemoResult(good, f"{len(phases)} pods, phases: {', '.join(sorted(set(phases.values())))}"))

    def show_processes(self) -> None:
        assert self.sampler is not None
        self.title("The pods' processes run in the kubelet's cgroups")
        for name, files in sorted(self.sampler.pods.items()):
            pids = [pid for procs in files.cpu.glob("*/cgroup.procs") for pid in procs.read_text().split()]
            comms = sorted({Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids})
            self.judge(DemoResult(len(pids) >= 2, f"{name}: {', '.join(comms)} in {files.cpu}"))

    def show_top(self) -> None:
        self.title("Which containers wait for the CPU, and which culprits delay them")
        url = self.settings.koordlet_url

        def verdicts(top: Top, *, shared: bool = False) -> list[DemoResult]:
            return [
                judge.culprit_named(top, workload.VICTIM, workload.BATCH, shared=shared),
                judge.own_throttling_shown(top, workload.METER, shared=shared),
            ]

        with self.progress.step("a window of latency figures") as step:

            def good(top: Top, shared: bool) -> bool:
                step.note(judge.culprit_named(top, workload.VICTIM, workload.BATCH).text)
                return all(verdict.ok for verdict in verdicts(top, shared=shared))

            top = self.figures(good, step.note)
            step.done(f"{top.window:g} s")
        self.progress.say(f"$ koordctl top --once -n {workload.NAMESPACE} --koordlet-url={url}")
        print_top(top, self.progress.console, namespace=workload.NAMESPACE)
        self.progress.say()
        for verdict in verdicts(top, shared=True):
            self.judge(verdict)

    def show_explanation(self) -> None:
        self.title("What interferes with web, and what to do about it")
        url = self.settings.koordlet_url

        reports: list[PodInterferenceReport] = []
        shared = False

        def verdicts(shared: bool) -> list[DemoResult]:
            web, meter = reports
            return [
                judge.interference_explained(web, workload.BATCH, shared=shared),
                judge.own_trouble_explained(meter),
            ]

        def good(top: Top, late: bool) -> bool:
            nonlocal reports, shared
            pods = (workload.VICTIM, workload.METER)
            reports = [asyncio.run(fetch_explanation(url, workload.NAMESPACE, pod)) for pod in pods]
            shared = shared or judge.has_foreign_work(top)
            return all(verdict.ok for verdict in verdicts(shared and late))

        self.figures(good)
        self.progress.say(f"$ koordctl explain pod {workload.VICTIM} -n {workload.NAMESPACE} --koordlet-url={url}")
        print_explanation(reports[0], self.progress.console)
        self.progress.say()
        for verdict in verdicts(shared):
            self.judge(verdict)

    def show_metrics(self) -> None:
        self.title("NodeMetric compared with the kernel's files")
        with self.progress.step(f"a report over {AGGREGATE_S} s of complete samples") as step:
            metric, seen = asyncio.run(self._report(step.note))
            step.done(f"updated {metric.status.update_time}")
        self.show("get", "nodemetric", "-o", "wide")
        self.show("get", "nodemetric", "-o", f"custom-columns={METRIC_COLUMNS}")
        assert self.sampler is not None
        start = seen - AGGREGATE_S
        info = metric.status.node_metric
        if info is None:
            self.judge(DemoResult(False, "NodeMetric has no nodeMetric"))
            return
        verdicts = judge.compare("node", info.node_usage, average(self.sampler.samples, start, seen))
        reported = {pod.name: pod.pod_usage for pod in metric.status.pods_metric}
        for name in workload.PODS:
            if name in reported:
                use = average(self.sampler.samples, start, seen, name)
                verdicts += judge.compare(f"pod {name}", reported[name], use)
            else:
                verdicts.append(DemoResult(False, f"pod {name}: not in NodeMetric"))
        for verdict in verdicts:
            self.judge(verdict)

    def show_colocation(self) -> None:
        self.title(
            "A ClusterColocationProfile makes a pod best effort; the scheduler places it on overcommitted capacity"
        )
        folder = self.folder / "colocation"
        first, other = workload.cores()
        workload.write(folder, workload.rendered("", first, other, workload.COLOCATION))
        pod, config = str(folder / "report.yaml"), ("cm", "slo-controller-config", "-n", KOORDINATOR_NAMESPACE)
        current = self.kubectl.get(*config)["data"].get("colocation-config", "")
        change = json.dumps({"data": {"colocation-config": colocation.strategy(current)}})
        self.kubectl.run("patch", *config, "--type=merge", "-p", change)
        self.kubectl.run("apply", "-f", str(folder / "profile.yaml"))
        name = self.settings.node_name
        self.judge(
            self.wait(lambda: colocation.offers_batch_resources(self.kubectl.get("node", name)), REPORT_TIMEOUT_S)
        )
        # A dry run shows when the manager applies the profile.
        dry_run = ("create", "--dry-run=server", "-o", "json", "-f", pod)
        self.wait(lambda: colocation.admitted(json.loads(self.kubectl.run(*dry_run))), PROFILE_TIMEOUT_S)
        self.kubectl.run("apply", "-f", pod)
        self.kubectl.run("wait", "-n", workload.NAMESPACE, "--for=condition=Ready", "pod/report", "--timeout=60s")
        self.show("get", "pod", "report", "-n", workload.NAMESPACE, "-o", "wide")
        stored = self.kubectl.get("pod", "report", "-n", workload.NAMESPACE)
        self.judge(colocation.admitted(stored))
        self.judge(colocation.scheduled(stored, self.settings.node_name))
        address = self.settings.scheduler_url
        placement = asyncio.run(fetch_placement(address, workload.NAMESPACE, "report"))
        if placement is None:
            raise CtlError("the scheduler does not know the pod that it placed", self.logs("scheduler"))
        self.progress.say(f"$ koordctl explain pod report -n {workload.NAMESPACE} --scheduler-url={address}")
        print_placement(placement, self.progress.console)
        self.progress.say()
        cpu, memory = (find_group(stored["metadata"]["uid"], name) for name in ("cpu", "memory"))
        if cpu is None or memory is None:
            raise CtlError("no kubepods cgroup of report exists", self.logs("kubelet"))
        # koordlet writes its batch resources there.
        self.judge(self.wait(lambda: colocation.placed(stored, cpu, memory), TOP_TIMEOUT_S))

    def show_overcommit(self) -> None:
        self.title("Overcommitted resources follow the node's load")
        self.judge(self.wait(self._follows, REPORT_TIMEOUT_S))
        folder = self.folder / "overcommit"
        first, other = workload.cores()
        workload.write(folder, workload.rendered(self.settings.node_name, first, other, workload.OVERCOMMIT))
        self.kubectl.run("apply", "-f", str(folder))
        self.kubectl.run("wait", "-n", workload.NAMESPACE, "--for=condition=Ready", "pod/rush", "--timeout=60s")
        self.judge(self.wait(self._follows, REPORT_TIMEOUT_S))
        with self.progress.step("a report with the usage of rush") as step:
            measured = self.wait(self._measured, REPORT_TIMEOUT_S)
            step.done(measured.text)
        self.judge(self.wait(self._follows, REPORT_TIMEOUT_S))
        name = self.settings.node_name
        self.show("get", "node", name, "-o", OVERCOMMIT_COLUMNS)
        self.progress.say(f"$ koordctl node {name} --state-dir={self.state_dir}")
        for line in node_page(overcommit_of(self._objects()[0]), SYSTEM_CLOCK.now()):
            self.progress.console.print(line, soft_wrap=True)

    def _objects(self) -> tuple[Node, NodeMetric, list[Pod]]:
        name = self.settings.node_name
        pods = self.kubectl.get("pods", "-A")["items"]
        return (
            convert(self.kubectl.get("node", name), Node),
            convert(self.kubectl.get("nodemetric", name), NodeMetric),
            [convert(pod, Pod) for pod in pods],
        )

    def _follows(self) -> DemoResult:
        return overcommit.matches_load(*self._objects())

    def _measured(self) -> DemoResult:
        metric = self._objects()[1]
        return DemoResult(overcommit.reports(metric, "rush"), f"updated {metric.status.update_time}")

    async def _report(self, note: Callable[[str], None]) -> tuple[NodeMetric, float]:
        """The first report whose window was sampled completely, and the monotonic time at which it was read."""
        needed = self._watched_from + AGGREGATE_S + 1
        deadline = needed + REPORT_TIMEOUT_S
        updates: list[Time] = []
        async with Client(ClientConfig.load(self.layout.admin_kubeconfig)) as client:
            while time.monotonic() < deadline:
                metric = await client.get(NodeMetric, self.settings.node_name)
                now = time.monotonic()
                updated = metric.status.update_time
                if updated is not None and updated not in updates[-1:]:
                    updates.append(updated)
                    if now >= needed:
                        return metric, now
                seconds_left = needed - now
                note(f"{seconds_left:.0f} s to go" if seconds_left > 0 else "waiting for the next report")
                await asyncio.sleep(0.25)
        raise CtlError(
            f"koordlet sent no report within {deadline - self._watched_from:.0f} s ({len(updates)} before that)",
            self.logs("koordlet"),
        )

    # Commands

    def commands_to_try(self) -> list[str]:
        """Commands to try while the demo runs."""
        url = self.settings.koordlet_url
        return [
            f"  export KUBECONFIG={self.layout.admin_kubeconfig} PATH={self.kubectl.path.parent}:$PATH",
            "  kubectl get pods -A -w; kubectl describe node; kubectl -n demo logs web; kubectl get nodemetric -o yaml",
            f"  koordctl top --koordlet-url={url}",
            f"  koordctl explain pod {workload.METER} -n {workload.NAMESPACE} --koordlet-url={url}",
            f"  koordctl status --state-dir={self.state_dir}",
            f"  curl -s {url}/metrics | grep koordlet_sched_latency",
            f"  tail -f {self.state_dir}/logs/koordlet.log",
        ]
