"""What all steps of the demo use: the node, kubectl, and how results are shown and recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from control.ctl.demo.judge import DemoResult
from control.ctl.demo.workload import Kubectl
from control.ctl.node.parts import Layout
from control.ctl.node.state import NodeSettings
from control.ctl.node.up import up
from control.ctl.progress import TerminalProgress
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_top
from koordlet.api.pages.top import Top

REPORT_PERIOD_S, AGGREGATE_S = 10, 60
REPORT_TIMEOUT_S = 90.0
"""Longest wait for what follows from a report."""
TOP_TIMEOUT_S = 45.0
"""Longest wait for latency figures: two windows of 10 s, the start, and a margin."""
STRICT_S = 22.0
"""Two windows: after them a result that other work on the machine explains ends the wait."""
PIN_DIR = "/sys/fs/bpf/koordlet-demo"


class DemoStage:
    """`failures`: the failed checks."""

    def __init__(self, folder: Path, progress: TerminalProgress, runtime: str) -> None:
        self.folder = folder
        self.progress = progress
        self.runtime = runtime
        self.state_dir = folder / "state"
        self.layout = Layout(self.state_dir)
        self.failures: list[str] = []
        self.settings = NodeSettings(node_name="")
        self.kubectl: Kubectl

    def up(self, without: list[str], *, second_node: str | None = None) -> None:
        """Start the parts that do not run yet."""
        options: dict[str, object] = {
            "apiserver_port": 0,
            "kubelet_port": 0,
            "koordlet_port": 0,
            "manager_port": 0,
            "webhook_port": 0,
            "scheduler_port": 0,
            "runtimeproxy_port": 0,
            "runtime": self.runtime,
            "bpf_pin_dir": PIN_DIR,
            "report_interval": REPORT_PERIOD_S,
            "aggregate_duration": AGGREGATE_S,
            "second_node": second_node,
        }
        self.settings = asyncio.run(up(self.state_dir, options, without=without, progress=self.progress))
        self.kubectl = Kubectl(self.layout.admin_kubeconfig, self.folder / "kubectl-cache")

    def wait(self, check: Callable[[], DemoResult], seconds: float) -> DemoResult:
        """Poll until the check passes; returns the last result."""
        deadline = time.monotonic() + seconds
        while not (verdict := check()).ok and time.monotonic() < deadline:
            time.sleep(0.5)
        return verdict

    def figures(self, good: Callable[[Top, bool], bool], note: Callable[[str], None] | None = None) -> Top:
        """Poll koordlet until its data are `good`; returns the last ones after `TOP_TIMEOUT_S`. The second argument of
        `good` is whether `STRICT_S` have passed. `note` gets the reason while koordlet does not answer."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            try:
                top = asyncio.run(fetch_top(self.settings.koordlet_url))
                if good(top, waited > STRICT_S) or waited > TOP_TIMEOUT_S:
                    return top
            except KoordletUnreachable as error:
                if waited > TOP_TIMEOUT_S:
                    raise
                if note is not None:
                    note(error.message)
            time.sleep(1.0)

    def title(self, words: str) -> None:
        self.progress.console.print(f"\n[bold]{words}[/]", markup=True)

    def show(self, *args: str) -> None:
        """Run kubectl and show its output."""
        self.progress.say(f"$ kubectl {' '.join(args)}")
        self.progress.say(self.kubectl.run(*args).rstrip())

    def judge(self, verdict: DemoResult) -> None:
        """Show a result and record a failure."""
        if verdict.ok:
            self.progress.good(verdict.text)
        else:
            self.progress.bad(verdict.text)
            self.failures.append(verdict.text)

    def logs(self, part: str) -> str:
        return f"See {self.state_dir}/logs/{part}.log."
