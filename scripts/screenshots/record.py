"""Runs the demo with additional loads while Prometheus scrapes every component; the data stay on the disk."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from control.ctl.demo import workload
from control.ctl.demo.__main__ import clean_up
from control.ctl.demo.neighbour import NeighbourMove
from control.ctl.demo.scenario import Scenario
from control.ctl.errors import CtlError
from control.ctl.node.containers import CONTAINERD
from control.ctl.progress import TerminalProgress
from scripts.screenshots.prometheus import DATA, PrometheusServer, write_configuration

LOADS = Path(__file__).with_name("loads.yaml")
LOADED_S = 110.0
"""How long the loads run at the end: reports, two windows of the detector, and an alarm."""
JOBS = {
    "koordlet": ("koordlet_port", "/metrics"),
    "koord-manager": ("manager_port", "/all-metrics"),
    "koord-scheduler": ("scheduler_port", "/metrics"),
    "koord-descheduler": ("descheduler_port", "/metrics"),
    "koord-runtime-proxy": ("runtimeproxy_port", "/metrics"),
}
"""Job of each component, as deploy/prometheus and the dashboards name it: the setting with its port, and its page."""


class RecordedDemo(Scenario):
    """The demo's steps without the comparison with kernel files, then its batch pods and the loads together."""

    def __init__(self, folder: Path, progress: TerminalProgress, targets: Path) -> None:
        super().__init__(folder, progress, CONTAINERD)
        self._targets = targets

    def up(self, without: list[str], *, second_node: str | None = None) -> None:
        super().up(without, second_node=second_node)
        self._targets.write_text(json.dumps(targets(self.settings)))

    def run(self) -> None:
        self.bring_up()
        self.start_pods()
        self.watch()
        self.show_top()
        self.show_colocation()
        self.show_overcommit()
        self.stop()
        NeighbourMove(self).show()
        self.title("Batch pods and loads of disk, memory and network")
        self.kubectl.run("delete", "-n", workload.NAMESPACE, f"deployment/{workload.NEIGHBOUR}")
        loads = self.folder / "loads.yaml"
        loads.write_text(yaml.safe_dump_all(placed_loads(self.settings.node_name), sort_keys=False))
        for path in (self.folder / "workload", self.folder / "colocation", loads):
            self.show("apply", "-f", str(path))
        time.sleep(LOADED_S)
        self.show("get", "pods", "-n", workload.NAMESPACE, "-o", "wide")


def placed_loads(node: str) -> list[dict[str, Any]]:
    """The objects of loads.yaml; pods that name no scheduler are on `node`."""
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(LOADS.read_text()))
    for obj in objects:
        if obj["kind"] == "Pod" and "schedulerName" not in obj["spec"]:
            obj["spec"]["nodeName"] = node
    return objects


def targets(settings: Any) -> list[dict[str, Any]]:
    """The components that run, for Prometheus' discovery by file."""
    return [
        {
            "targets": [f"127.0.0.1:{getattr(settings, port)}"],
            "labels": {"job": job, "__metrics_path__": path},
        }
        for job, (port, path) in JOBS.items()
        if getattr(settings, port)
    ]


def record(root: Path, folder: Path) -> tuple[float, float]:
    """Run the demo; the interval of its data."""
    progress = TerminalProgress()
    shutil.rmtree(folder / DATA, ignore_errors=True)  # of an earlier run
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "targets.json"
    path.write_text("[]")
    write_configuration(folder, path, sorted((root / "deploy/prometheus").glob("*.rules.yaml")))
    demo = RecordedDemo(folder / "demo", progress, path)
    began = time.time()
    try:
        with PrometheusServer(folder):
            demo.run()
            ended = time.time()
    finally:
        demo.stop()
        remaining = clean_up(folder / "demo", progress)
    if remaining:
        raise CtlError(f"left after the demo: {'; '.join(remaining)}")
    return began, ended
