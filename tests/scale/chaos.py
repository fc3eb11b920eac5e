"""`make chaos`: 200 pods come and go while components are killed; see tests/koordlet/process/chaos.py and storm.py.

Run: `python tests/scale/chaos.py [--kills 50] [--duration 30m] [--pods 200] [--seed N]`, as root. Without a duration:
kill -9 of koordlet at `--kills` random moments. With one: of koordlet, API server, manager, scheduler and runtime
proxy, during outages of API server, kubelet and disk and steps of the clock. Progress is printed; the figures go to
build/bench/chaos.json (storm.json with a duration) as those of every benchmark do.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process.chaos import Chaos
from tests.koordlet.process.classes import ALL
from tests.koordlet.process.controlplane import ControlPlane
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.outages import small_state
from tests.koordlet.process.podtree import PodTree
from tests.koordlet.process.proxiedruntime import ProxiedRuntime
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.storm import Storm
from tests.koordlet.process.view import View
from tests.scale.figures import Figure, report
from tests.scale.soak import seconds_of
from tests.steppedclock import SteppedClock

MEMORY_MIB = 4096
GROWTH_MIB = 8.0
"""How much more resident memory a component may have in the last third of a storm than in the second, by the median:
memory is measured per process, whose ages differ."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--duration", type=seconds_of, default=0.0)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"# seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    tree = PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, 1)
    with tempfile.TemporaryDirectory(prefix="koord-chaos-") as scratch:
        view = View(tree, Path(scratch), bpffs=False)
        clock = SteppedClock(Path(scratch)) if options.duration else None
        scene = Scene(Fleet(tree), view, Path(scratch), environ=clock.environ if clock else None)
        chaos = Chaos(scene, rng, ALL, MEMORY_MIB, _say)
        plane = ControlPlane(scene, Path(scratch))
        try:
            if clock is None:
                chaos.open(options.pods)
                return _kill_report(chaos, chaos.run(options.kills), options.kills)
            small_state(view)
            runtime = ProxiedRuntime()
            try:
                storm = Storm(chaos, plane, runtime, clock, rng, _say)
                return _storm_report(storm, storm.run(options.pods, options.duration))
            finally:
                runtime.close()
        finally:
            plane.close()
            scene.close()
            view.close()
            tree.remove()


def _say(text: str) -> None:
    print(f"# {text}", flush=True)


def _kill_report(chaos: Chaos, wrong: Sequence[str], kills: int) -> int:
    stopped = _stated(wrong)
    return report(
        "chaos",
        [
            Figure("chaos_kills", kills, "kills"),
            Figure("chaos_restarts_checked", len(chaos.converged), "restarts"),
            Figure("chaos_settings_wrong", len(wrong) - stopped, "settings", 0),
            Figure("chaos_settings_left_after_stop", stopped, "settings", 0),
            Figure("chaos_start_and_two_rounds_median", median(chaos.converged), "s"),
        ],
    )


def _storm_report(storm: Storm, wrong: Sequence[str]) -> int:
    stopped = _stated(wrong)
    lost = sum(line.startswith("lost: ") for line in wrong)
    times = [turn.seconds for turn in storm.turns]
    counts = Counter(
        name for turn in storm.turns for name in (*(f"kill {killed}" for killed in turn.kills), *turn.outages)
    )
    rows = [
        Figure("storm_turns", len(storm.turns), "turns"),
        *(Figure(f"storm_{name.replace(' ', '_')}", count, "times") for name, count in sorted(counts.items())),
        Figure("storm_objects_acknowledged", storm.written, "objects"),
        Figure("storm_calls_without_answer", storm.unanswered, "calls"),
        Figure("storm_objects_lost", lost, "objects", 0),
        Figure("storm_settings_wrong", len(wrong) - stopped - lost, "settings", 0),
        Figure("storm_settings_left_after_stop", stopped, "settings", 0),
        Figure("storm_right_again_median", median(times), "s"),
        Figure("storm_right_again_longest", max(times), "s"),
    ]
    for name, readings in storm.memory.items():
        third = max(len(readings) // 3, 1)
        title = f"storm_memory_{name.replace(' ', '_')}"
        rows.append(Figure(f"{title}_largest", max(readings), "MiB"))
        growth = median(readings[-third:]) - median(readings[third : 2 * third] or readings)
        rows.append(Figure(f"{title}_growth", growth, "MiB", GROWTH_MIB))
    return report("storm", rows)


def _stated(wrong: Sequence[str]) -> int:
    """Print what was wrong; the number of settings that an orderly stop left."""
    for line in wrong:
        _say(line)
    return sum(line.startswith("stopped: ") for line in wrong)


if __name__ == "__main__":
    sys.exit(main())
