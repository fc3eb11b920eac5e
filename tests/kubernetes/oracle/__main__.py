"""`python -m tests.kubernetes.oracle --worlds 2000 --seed 1`: the differential run. Status 1 on a difference."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.kubernetes.oracle.run import run_worlds

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; worlds have consecutive seeds")
    parser.add_argument("--kubernetes", default="v1.35")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        programs = ROOT / "build" / "kubernetes" / arguments.kubernetes / "bin"
        seeds = range(arguments.seed, arguments.seed + arguments.worlds)
        tally = asyncio.run(run_worlds(Path(folder), programs, seeds))
    for difference in tally.differences:
        print(difference)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(tally.counts.items()))
    print(
        f"seeds {seeds.start} to {seeds.stop - 1}: {tally.worlds} worlds, {counts}; "
        f"{len(tally.differences)} differences, {time.monotonic() - begun:.0f} s"
    )
    return 1 if tally.differences else 0


sys.exit(main())
