"""`make bench-descheduler`: one pass of LowNodeLoad over 5,000 nodes and 100,000 pods, and what it achieves.

Objects are decoded from JSON as from an API server, trimmed and kept as in the process; evictions are recorded and not
sent. The second part simulates a cluster of 1,000 nodes. Each pass moves the evicted pods to the node with the lowest
load that has room. Load variance and hot nodes are compared before and after; pods that moved more than once are
counted. The third part compares LowNodeLoad alone with LowNodeLoad and InterferenceAware.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from koordlet.app.heap import freeze_heap
from tests.scale.figures import Figure, report
from tests.scale.interferencemoves import compared
from tests.scale.simulatedcluster import SimulatedCluster, cluster

HIGH_PERCENT = 65
PASS_BUDGET_S = 1.0
MEMORY_BUDGET_MB = 1000.0
MAX_PASSES = 30
ARGS: dict[str, Any] = {
    "lowThresholds": {"cpu": 45, "memory": 55},
    "highThresholds": {"cpu": HIGH_PERCENT, "memory": 80},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
}


def one_pass(simulated: SimulatedCluster, plugin: LowNodeLoad) -> tuple[float, float]:
    """(CPU seconds, elapsed seconds) of one pass with a fresh limiter."""
    nodes = simulated.world.state.ready_nodes()
    began, cpu = time.perf_counter(), time.process_time()
    simulated.world.limiter.reset()
    asyncio.run(plugin.balance(nodes))
    return time.process_time() - cpu, time.perf_counter() - began


def measured_pass(nodes: int, pods: int, rounds: int) -> list[Figure]:
    simulated = cluster(nodes, pods, seed=1)
    freeze_heap()
    gc.collect()
    memory_mb = psutil.Process().memory_info().rss / 1e6
    plugin = simulated.world.plugin(LowNodeLoad, ARGS)
    times = [one_pass(simulated, plugin) for _ in range(rounds)]
    cpu = [time[0] for time in times]
    return [
        Figure("pass_cpu", statistics.median(cpu), "s", PASS_BUDGET_S, spread=max(cpu) - min(cpu)),
        Figure("pass_elapsed", statistics.median(time[1] for time in times), "s"),
        Figure("resident_memory", memory_mb, "MB", MEMORY_BUDGET_MB),
        Figure("evictions_per_pass", len(simulated.world.evicted) / rounds, "pods"),
    ]


def simulated(nodes: int, seed: int) -> list[Figure]:
    simulated = cluster(nodes, 20 * nodes, seed)
    plugin = simulated.world.plugin(LowNodeLoad, ARGS)
    before, moves, passes = simulated.loads(), Counter[str](), 0
    while passes < MAX_PASSES:
        passes += 1
        evicted_before = len(simulated.world.evictor.evicted)
        one_pass(simulated, plugin)
        evicted = simulated.world.evictor.evicted[evicted_before:]
        if not evicted:
            break
        moves.update(record.key for record, _ in evicted)
        simulated.move(evicted)
    after = simulated.loads()
    return [
        Figure("load_deviation_before", statistics.pstdev(before), "percent"),
        Figure("load_deviation_after", statistics.pstdev(after), "percent", statistics.pstdev(before)),
        Figure("hot_nodes_before", sum(load > HIGH_PERCENT for load in before), "nodes"),
        Figure("hot_nodes_after", sum(load > HIGH_PERCENT for load in after), "nodes", 0),
        Figure("moves", sum(moves.values()), "pods"),
        Figure("pods_moved_twice", sum(count > 1 for count in moves.values()), "pods", 0),
        Figure("passes", passes, "passes", MAX_PASSES - 1),
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--simulated-nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = measured_pass(options.nodes, options.pods, options.rounds)
    figures += simulated(options.simulated_nodes, options.seed)
    return report("descheduler", [*figures, *compared(options.simulated_nodes, options.seed)])


if __name__ == "__main__":
    sys.exit(main())
