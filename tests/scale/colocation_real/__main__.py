"""`make bench-colocation`: services and batch work of Debian on one node, with and without koordlet.

Run: `python -m tests.scale.colocation_real [--services redis,nginx] [--batch cpu,disk] [--rounds 3] [--seconds 10]
[--head 1] [--weight 2] [--svg FOLDER]`, as root. All chosen services run at the same time, each with a client of
constant rate; they are measured

  alone        without batch work
  ordinary     beside batch pods with CPU requests, as in a cluster without Koordinator
  best effort  beside batch pods of Kubernetes' BestEffort class, no koordlet
  defaults     the same pods with batch resources, koordlet and the installed configuration
  recommended  the same with the configuration's key `strategy-profile: recommended`
  batch only   batch work without requests to the services: what it achieves by itself

for every class of batch work (batch.py). One line per reading has p50, p99 and maximum of each service, the batch
work's own figures, and how much of the machine was taken away meanwhile. At the end: table, figures (JSON in
build/bench/colocation_real.json), charts if wanted; exit status 1 if a figure exceeds its budget or is unclear.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.scale.colocation import picture
from tests.scale.colocation.stage import HEAD_START
from tests.scale.colocation_real.batch import CLASSES
from tests.scale.colocation_real.node import RealNode, RealReading
from tests.scale.colocation_real.plan import PlannedReading, readings, round_blocks
from tests.scale.colocation_real.results import chart_rows, figures, table
from tests.scale.colocation_real.services import SERVICES, NotInstalled
from tests.scale.figures import report


def words(reading: RealReading) -> str:
    """A reading as a line."""
    services = ", ".join(
        " ".join([name, *(f"{reading.percentile(name, level):.2f}" for level in (50, 99, 100))])
        for name in reading.latencies
    )
    rates = ", ".join(f"{program} {rate:.4g}" for program, rate in reading.rates.items())
    lost = f"stolen {reading.stolen:.1%}, stopped {reading.stopped:.1%}" + (" DISTURBED" if reading.disturbed else "")
    cores = f"cores {reading.service_cores:.2f} + {reading.batch_cores:.2f}, koordlet {reading.koordlet_cores:.3f}"
    return "; ".join(filter(None, (services, rates, cores, lost)))


def chosen(text: str, known: list[str]) -> list[str]:
    """Names from a comma-separated list. Raises ArgumentTypeError."""
    names = [name for name in known if name in text.split(",")] if text else known
    unknown = set(text.split(",")) - set(known) if text else set()
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--services", type=lambda text: chosen(text, list(SERVICES)), default=list(SERVICES))
    parser.add_argument("--batch", type=lambda text: chosen(text, list(CLASSES)), default=list(CLASSES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each reading")
    parser.add_argument(
        "--head", type=float, default=HEAD_START,
        help="seconds that the batch work runs before each reading: an action against interference takes about 20",
    )  # fmt: skip
    parser.add_argument(
        "--weight", type=int, default=os.cpu_count() or 1,
        help="CPU weight of all pods relative to one process outside; the kubelet's is the number of CPUs. A higher "
        "one shields from other work on the machine, but delays the kernel's threads, for which PostgreSQL's commits "
        "wait",
    )  # fmt: skip
    parser.add_argument("--svg", type=Path, default=None, help="folder for a chart of each service")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C, with cleanup
    rounds: dict[PlannedReading, list[RealReading]] = {planned: [] for planned in readings(options.batch)}
    total, count = options.rounds * len(rounds), 0
    with tempfile.TemporaryDirectory(prefix="koord-colocation-") as scratch:
        try:
            node = RealNode(Path(scratch), options.services, options.weight)
            try:
                print("# preparing data", flush=True)
                node.open()
                for turn in range(options.rounds):
                    load = os.getloadavg()[0]
                    print(f"# round {turn + 1}, {time.strftime('%H:%M:%S')}, load {load:.1f}", flush=True)
                    for phase, block in round_blocks(options.batch, turn):
                        with node.enforced(phase):
                            for planned in block:
                                reading = node.measure(planned, options.seconds, options.head)
                                rounds[planned].append(reading)
                                count += 1
                                name = f"{planned.batch:<13}{planned.phase:<12}"
                                print(f"# {count}/{total} {name} {words(reading)}", flush=True)
                    print("\n" + table(rounds, options.services) + "\n", flush=True)
            finally:
                node.close()
        except KeyboardInterrupt:
            print("\n# interrupted: cleaning up")
        except NotInstalled as error:
            print(f"{error}; run scripts/setup.sh colocation")
            return 2
    if not all(rounds.values()):
        print("# no round was finished")
        return 1
    for service in options.services if options.svg is not None else ():
        note = (
            f"p99 by the client; {options.rounds} readings of {options.seconds:g} s; kernel "
            f"{platform.release().partition('-')[0]}, {os.cpu_count()} CPUs"
        )
        drawing = picture.svg(f"{service} and batch work", note, chart_rows(rounds, service))
        (options.svg / f"{service}.svg").write_text(drawing, encoding="utf-8")
    return report("colocation_real", list(figures(rounds, options.services)))


if __name__ == "__main__":
    sys.exit(main())
