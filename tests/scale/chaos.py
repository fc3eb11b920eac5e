"""`make chaos`: kill -9 koordlet at 50 random moments while 200 pods come and go; see tests/koordlet/process/chaos.py.

Run: `python tests/scale/chaos.py [--kills 50] [--pods 200] [--seed N]`, as root. Progress is printed; the figures go to
build/bench/chaos.json as those of every benchmark do.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.process import conftest as lab
from tests.koordlet.process.chaos import Chaos
from tests.koordlet.process.classes import ALL
from tests.koordlet.process.fleet import Fleet
from tests.koordlet.process.scene import Scene
from tests.scale.figures import Figure, report

MEMORY_MIB = 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"# seed {options.seed}", flush=True)
    tree = lab.PodTree(Host(Roots.host()), CgroupDriver.CGROUPFS, 1)
    with tempfile.TemporaryDirectory(prefix="koord-chaos-") as scratch:
        view = lab.View(tree, Path(scratch), bpffs=False)
        scene = Scene(lab, Fleet(tree), view, Path(scratch))
        try:
            chaos = Chaos(
                scene, random.Random(options.seed), ALL, MEMORY_MIB, lambda said: print(f"# {said}", flush=True)
            )
            chaos.open(options.pods)
            wrong = chaos.run(options.kills)
        finally:
            scene.close()
            view.close()
            tree.remove()
    for line in wrong:
        print(f"# {line}")
    stopped = sum(line.startswith("stopped: ") for line in wrong)
    return report(
        "chaos",
        [
            Figure("chaos_kills", options.kills, "kills"),
            Figure("chaos_restarts_checked", len(chaos.converged), "restarts"),
            Figure("chaos_settings_wrong", len(wrong) - stopped, "settings", 0),
            Figure("chaos_settings_left_after_stop", stopped, "settings", 0),
            Figure("chaos_start_and_two_rounds_median", median(chaos.converged), "s"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
