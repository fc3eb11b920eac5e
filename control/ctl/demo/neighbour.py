"""The demo's last step: koord-descheduler moves a noisy neighbour to a second node, and the service recovers.

The second node is another kubelet on this machine, with cgroups of its own; there the neighbour uses another core. So
the step needs two cores.
"""

from __future__ import annotations

import asyncio
from typing import Any

from control.ctl.demo import judge, workload
from control.ctl.demo.judge import DemoResult
from control.ctl.demo.stage import REPORT_PERIOD_S, DemoStage
from control.ctl.pagecommands import print_top
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.migrations import fetch_migrations, migrations_table, summaries
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.pages.top import Top
from koordlet.app.clock import SYSTEM_CLOCK

MOVE_TIMEOUT_S = 120.0
"""Longest time until the neighbour has moved: two reports that show the delay, the migration, and a margin."""
ENDED_PODS = (*workload.BATCH, "rush", "report")
"""Pods of earlier steps, which would delay web or use the other core."""
NODES = "custom-columns=POD:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase"


class NeighbourMove:
    """The step; it uses the stage's node, kubectl and list of failures."""

    def __init__(self, stage: DemoStage) -> None:
        self._stage = stage
        self._second = f"{stage.settings.node_name}-2"

    def show(self) -> None:
        stage = self._stage
        stage.title("koord-descheduler moves a noisy neighbour to a second node")
        shared, other = workload.cores()
        if shared == other:
            stage.progress.say("This machine has one core: two nodes would share it, so that a move changes nothing.")
            return
        self._start(shared, other)
        before = self._delayed()
        stage.up(without=[], second_node=self._second)
        stage.show("get", "nodes")
        with stage.progress.step(
            f"{self._moves_words()} (two reports of {REPORT_PERIOD_S} s must show the delay)"
        ) as step:
            moved = stage.wait(self._moved, MOVE_TIMEOUT_S)
            step.done(moved.text)
        stage.progress.say(f"$ koordctl migrations --all --state-dir={stage.state_dir}")
        uncut = SafeConsole(file=stage.progress.console.file, width=UNCUT_COLUMNS, highlight=False)
        uncut.print(migrations_table(summaries(self._jobs(), SYSTEM_CLOCK.now())))
        stage.judge(moved)
        stage.judge(self._recovered(before))
        stage.show("get", "pods", "-n", workload.NAMESPACE, "-o", NODES)

    def _start(self, shared: int, other: int) -> None:
        stage, namespace = self._stage, ("-n", workload.NAMESPACE)
        stage.kubectl.run("delete", "pods", *namespace, *ENDED_PODS, "--timeout=60s")
        folder = stage.folder / "move"
        files = workload.rendered("", shared, other, workload.MOVE, first_node=stage.settings.node_name)
        workload.write(folder, files)
        stage.show("apply", "-f", str(folder))
        stage.kubectl.run("rollout", "status", *namespace, f"deployment/{workload.NEIGHBOUR}", "--timeout=60s")

    def _moves_words(self) -> str:
        return f"{workload.NEIGHBOUR} moves to {self._second}"

    def _pods(self) -> list[dict[str, Any]]:
        """The neighbour's pods that do not end."""
        selector = ("-l", f"app={workload.NEIGHBOUR}")
        pods = self._stage.kubectl.get("pods", "-n", workload.NAMESPACE, *selector)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _jobs(self) -> list[PodMigrationJob]:
        return asyncio.run(fetch_migrations(str(self._stage.layout.admin_kubeconfig)))

    def _moved(self) -> DemoResult:
        return judge.neighbour_moved(self._jobs(), self._pods(), self._second)

    def _delayed(self) -> Top:
        """Wait until the neighbour is the worst culprit of web's waiting; returns koordlet's data."""
        names = [pod["metadata"]["name"] for pod in self._pods()]
        top = self._stage.figures(
            lambda top, shared: judge.culprit_named(top, workload.VICTIM, names, shared=shared).ok
        )
        self._print(top)
        self._stage.judge(judge.culprit_named(top, workload.VICTIM, names, shared=True))
        return top

    def _recovered(self, before: Top) -> DemoResult:
        """Wait until web waits much less than before."""

        def verdict(top: Top, shared: bool) -> DemoResult:
            return judge.recovered(before, top, workload.VICTIM, workload.NEIGHBOUR, shared=shared)

        top = self._stage.figures(lambda top, shared: verdict(top, shared).ok)
        self._print(top)
        return verdict(top, True)

    def _print(self, top: Top) -> None:
        url = self._stage.settings.koordlet_url
        self._stage.progress.say(f"$ koordctl top --once -n {workload.NAMESPACE} --koordlet-url={url}")
        print_top(top, self._stage.progress.console, namespace=workload.NAMESPACE)
        self._stage.progress.say()
