"""Cost of one call of a default plugin: for the whole table, and for a single row.

Run: `python tests/scale/bench_scheduler_plugins.py [--nodes 5000] [--only NAME,…]`. Each line is a plugin and a pod:
the best of several rounds, in CPU microseconds per call, as called in cycles. `filter` and `score`: for every row, and
for one; `cycle`: for plugins that run in every cycle: PreFilter and Filter over all rows, then PreScore, Score and
Normalize, with one pod placed between two cycles.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.scheduler.config.args import default_args
from control.scheduler.framework.plugin import CycleState, Plugin, Reads, overrides
from control.scheduler.plugins.balancedallocation import NodeResourcesBalancedAllocation
from control.scheduler.plugins.imagelocality import ImageLocality
from control.scheduler.plugins.interpodaffinity import InterPodAffinity
from control.scheduler.plugins.nodeaffinity import NodeAffinityPlugin
from control.scheduler.plugins.nodeports import NodePorts
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.plugins.nodeunschedulable import NodeUnschedulable
from control.scheduler.plugins.podtopologyspread import PodTopologySpread
from control.scheduler.plugins.tainttoleration import TaintToleration
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
APP = {"app": "web"}
SELECTOR = {"labelSelector": {"matchLabels": APP}}


def spread(*constraints: tuple[str, str, int]) -> Pod:
    spreads = [{"topologyKey": k, "whenUnsatisfiable": w, "maxSkew": s, **SELECTOR} for k, w, s in constraints]
    return pod(labels=APP, spec={"topologySpreadConstraints": spreads})


def affine(kind: str, key: str, *, required: bool) -> Pod:
    term: Any = {"topologyKey": key, **SELECTOR}
    when = "required" if required else "preferred"
    terms = [term] if required else [{"weight": 10, "podAffinityTerm": term}]
    return pod(labels=APP, spec={"affinity": {kind: {f"{when}DuringSchedulingIgnoredDuringExecution": terms}}})


def node_affine() -> Pod:
    in_zones = {"key": ZONE, "operator": "In", "values": ["z0", "z1"]}
    preferred = [{"weight": 5, "preference": {"matchExpressions": [in_zones]}}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [in_zones]}]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": terms,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    return pod(spec={"affinity": {"nodeAffinity": affinity}})


@dataclass(frozen=True)
class Case:
    kind: type[Plugin]
    pod: Pod
    what: str


def cases() -> list[Case]:
    hard, soft = "DoNotSchedule", "ScheduleAnyway"
    ported = pod(spec={"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]})
    return [
        Case(NodeResourcesFit, pod(cpu="500m", memory="512Mi"), "cpu, memory"),
        Case(NodeResourcesBalancedAllocation, pod(cpu="500m", memory="512Mi"), "cpu, memory"),
        Case(TaintToleration, pod(), "no tolerations"),
        Case(NodeUnschedulable, pod(), "no tolerations"),
        Case(NodeAffinityPlugin, node_affine(), "zone In, preferred zone"),
        Case(NodePorts, ported, "one port"),
        Case(ImageLocality, pod(), "one image"),
        Case(PodTopologySpread, pod(), "no constraints"),
        Case(PodTopologySpread, spread((ZONE, hard, 1)), "zone, hard"),
        Case(PodTopologySpread, spread((ZONE, hard, 1), (HOST, hard, 5)), "zone and host, hard"),
        Case(PodTopologySpread, spread((HOST, soft, 3), (ZONE, soft, 5)), "zone and host, soft"),
        Case(InterPodAffinity, pod(), "no terms"),
        Case(InterPodAffinity, affine("podAntiAffinity", HOST, required=True), "far by host, required"),
        Case(InterPodAffinity, affine("podAffinity", ZONE, required=True), "near by zone, required"),
        Case(InterPodAffinity, affine("podAntiAffinity", HOST, required=False), "far by host, preferred"),
    ]


def cluster(nodes: int) -> Cluster:
    cluster = Cluster(*(node(f"n{i}", cpu="64", memory="256Gi", labels={ZONE: f"z{i % 3}"}) for i in range(nodes)))
    pods = [pod(labels={"app": f"app{i % 50}"}, on=f"n{i * 7 % nodes}") for i in range(2 * nodes)]
    cluster.put(*pods, *(pod(labels=APP, on=f"n{i * 11 % nodes}") for i in range(nodes // 10)))
    return cluster


def best(call: Callable[[], object], rounds: int = 7, seconds: float = 0.03) -> float:
    """Microseconds per call."""
    begun = time.process_time()
    call()
    once = max(time.process_time() - begun, 1e-7)
    times = max(3, int(seconds / once))
    shortest = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            call()
        shortest = min(shortest, (time.process_time() - begun) / times)
    return shortest * 1e6


def measure(case: Case, nodes: int) -> list[float | None]:
    """[filter all, filter one, score all, score one, cycle]"""
    simulated = cluster(nodes)
    plugin = case.kind(default_args(case.kind.name), simulated.handle)
    info, table = simulated.info(case.pod), simulated.table
    rows, single_row = np.arange(nodes), np.array([nodes // 2], np.intp)
    state = CycleState()
    skipped = plugin.pre_filter(state, info).status.skipped
    filters = overrides(plugin, "filter") and not skipped
    scores = overrides(plugin, "score") and not plugin.pre_score(state, info, rows).skipped
    times: list[float | None] = [
        best(lambda: plugin.filter(state, info, table.all)) if filters else None,
        best(lambda: plugin.filter(state, info, single_row)) if filters else None,
        best(lambda: plugin.score(state, info, table.all)) if scores else None,
        best(lambda: plugin.score(state, info, single_row)) if scores else None,
    ]
    if plugin.reads is Reads.CLUSTER:
        placed = [simulated.info(case.pod) for _ in range(64)]
        times.append(best(lambda: _cycle(plugin, simulated, info, rows, placed)))
    else:
        times.append(None)
    return times


def _cycle(plugin: Plugin, cluster: Cluster, info: PodInfo, rows: Any, placed: list[PodInfo]) -> None:
    """A cycle as the scheduler runs it; then a pod of the shape moves to the next row."""
    state = CycleState()
    if overrides(plugin, "filter") and not plugin.pre_filter(state, info).status.skipped:
        plugin.filter(state, info, rows)
    if overrides(plugin, "score") and not plugin.pre_score(state, info, rows).skipped:
        plugin.normalize(state, info, rows, plugin.score(state, info, rows))
    mover = placed.pop(0)
    if mover.row >= 0:
        cluster.table.remove_pod(mover)
    cluster.table.add_pod(mover, cluster.table.names[(cluster.table.pod_log.end * 13) % len(rows)])
    placed.append(mover)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--only", default="", help="names of plugins, separated by commas")
    options = parser.parse_args()
    only = {name for name in options.only.split(",") if name}
    columns = ("filter all", "filter one", "score all", "score one", "cycle")
    print(f"us of CPU time a call at {options.nodes} nodes")
    print(f"{'plugin':34}{'pod':26}" + "".join(f"{name:>12}" for name in columns))
    for case in cases():
        if not only or case.kind.name in only:
            figures = measure(case, options.nodes)
            cells = ("-" if figure is None else f"{figure:.1f}" for figure in figures)
            print(f"{case.kind.name:34}{case.what:26}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
