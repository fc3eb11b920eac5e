"""`make demo-colocation`: the effect of batch work on a service on the same CPU, without koordlet and with it.

Run: `python -m tests.scale.colocation [--once] [--rounds 5] [--seconds 6] [--only KIND] [--without PHASE ...] [--svg
FILE]`, as root. A small service with an open-loop client (service.py, client.py) is measured in interleaved rounds,
with

  alone        no other work on its CPU
  ordinary     two batch pods with CPU requests, as in a cluster without Koordinator
  best effort  two batch pods of Kubernetes' BestEffort class, no koordlet
  koordlet     the same pods with batch resources, enforced by a real koordlet with a NodeSLO

and with three kinds of hogs: CPU burners, readers of a large file while memory is short, readers of the disk. One line
per reading has its distribution, where the slowest hundredth of the requests lost time, and the machine's disturbances:
stops of a CPU by the hypervisor are detected, and p99 without the requests that they delayed is printed beside the
plain one, which is the relevant one. Readings that remain disturbed after repetition are left out, whatever their
latencies are, while a phase has others, with a message; with --once up to twice as many rounds run until each phase has
--rounds undisturbed readings. Each round ends with the table so far. Without --once it continues until Ctrl-C. At the
end: table, chart, figures as of every benchmark (JSON in build/bench/colocation.json); exit status 1 when a figure
exceeds its budget.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.scale.colocation import picture
from tests.scale.colocation.requests import parts, percentile, seconds_of
from tests.scale.colocation.stage import ALONE, AS_BEST_EFFORT, AS_ORDINARY, ENFORCED, Reading, Stage
from tests.scale.figures import Figure, report

LOAD = 0.6
SLOWDOWN, IDLE_USED = 1.1, 80.0
LEVELS = (50, 90, 99, 99.9, 100)
PHASES = {
    "cpu": (ALONE, AS_ORDINARY, AS_BEST_EFFORT, ENFORCED),
    "memory": (ALONE, AS_BEST_EFFORT, ENFORCED),
    "disk": (ALONE, AS_BEST_EFFORT, ENFORCED),
}
Rounds = dict[tuple[str, str], list[Reading]]


def play_round(stage: Stage, readings: Rounds, seconds: float, *, backwards: bool) -> None:
    """Every kind in every phase once; every other round in reverse order, so that a drift favours no phase."""

    def measure(phases: tuple[str, ...]) -> None:
        for kind in dict.fromkeys(kind for kind, _ in readings):
            for phase in phases:
                if (kind, phase) in readings:
                    reading = stage.measure(kind, phase, seconds)
                    readings[kind, phase].append(reading)
                    print(f"#   {kind:<8}{phase:<14}{words(reading)}", flush=True)

    def enforced() -> None:
        with stage.koordlet():
            measure((ENFORCED,))

    if backwards:
        enforced()
    measure((ALONE, AS_ORDINARY, AS_BEST_EFFORT))
    if not backwards:
        enforced()


def undisturbed(readings: list[Reading]) -> list[Reading]:
    """All readings if none is undisturbed."""
    return [reading for reading in readings if reading.disturbance <= 1] or readings


def complete(readings: Rounds, rounds: int) -> bool:
    """Whether each phase has `count` undisturbed readings."""
    return all(
        sum(round_reading.disturbance <= 1 for round_reading in reading) >= rounds for reading in readings.values()
    )


def words(reading: Reading) -> str:
    """The distribution, where time was lost, and the disturbances."""
    levels = " ".join(f"{reading.percentile(level) * 1e3:.2f}" for level in LEVELS)
    lost = parts(reading.requests)
    where = " ".join(f"{name} {percentile(values, 99) * 1e3:.2f}" for name, values in lost.items())
    spared = reading.spared
    without = percentile((request.latency for request in spared), 99) * 1e3
    stopped = f"{len(reading.stops)} stops of {seconds_of(reading.stops) * 1e3:.0f} ms"
    hit = (
        f"hit {len(reading.requests) - len(spared)} of {len(reading.requests)} requests, p99 of the rest {without:.2f}"
    )
    other_use = f"others {reading.others:.1%}, koordlet {reading.enforcer_cpu / reading.seconds:.1%}"
    left_out = "; DISTURBED, left out" if reading.disturbance > 1 else ""
    return f"{levels} ms (p50 p90 p99 p99.9 max); p99 lost: {where}; {stopped} {hit}; {other_use}{left_out}"


def figures(readings: Rounds, repeated: int) -> list[Figure]:
    """Figures of the measured kinds, from undisturbed readings."""
    disturbed = sum(round_reading.disturbance > 1 for reading in readings.values() for round_reading in reading)
    readings = {key: undisturbed(rounds_read) for key, rounds_read in readings.items()}

    def p99(kind: str, phase: str) -> float:
        return median(reading.percentile(99) for reading in readings[kind, phase]) * 1e3

    def undelayed(kind: str, phase: str) -> float:
        return median(percentile((x.latency for x in reading.spared), 99) for reading in readings[kind, phase]) * 1e3

    def faults(phase: str) -> float:
        return median(reading.refaults for reading in readings["memory", phase])

    figures_listed = [
        Figure("colocation_readings", min(len(reading) for reading in readings.values()), "a phase, at least"),
        Figure("colocation_repeated", repeated, "readings"),
        Figure("colocation_disturbed", disturbed, "readings"),
    ]
    for kind, phase in readings:
        name = f"colocation_{kind}_p99_{phase.replace(' ', '_')}"
        if phase == ALONE:
            figures_listed.append(Figure(name, p99(kind, phase), "ms"))
        else:
            bound = SLOWDOWN if phase == ENFORCED else None
            figures_listed.append(Figure(name, p99(kind, phase) / p99(kind, ALONE), "x alone", bound))
        if phase == ENFORCED:
            ratio = undelayed(kind, phase) / max(undelayed(kind, ALONE), 1e-6)
            figures_listed.append(Figure(f"{name}_without_machine_stops", ratio, "x alone"))
    if ("cpu", ENFORCED) in readings:
        used = 100 * median(reading.batch_share for reading in readings["cpu", ENFORCED])
        figures_listed.append(Figure("colocation_idle_cpu_used", used, "%", IDLE_USED, at_least=True))
    if ("memory", ENFORCED) in readings:
        bound = None
        if ("memory", AS_BEST_EFFORT) in readings:
            bound = 0.01 * faults(AS_BEST_EFFORT)
            figures_listed.append(Figure("colocation_refaults_best_effort", faults(AS_BEST_EFFORT), "pages"))
        figures_listed.append(Figure("colocation_refaults_koordlet", faults(ENFORCED), "pages", bound))
    return figures_listed


def latencies(readings: Rounds) -> picture.Rows:
    return {
        key: [reading.percentile(99) * 1e3 for reading in undisturbed(rounds_read)]
        for key, rounds_read in readings.items()
    }


def show(readings: Rounds) -> None:
    readings = {key: undisturbed(rounds_read) for key, rounds_read in readings.items()}
    shares = {key: [reading.batch_share for reading in rounds_read] for key, rounds_read in readings.items()}
    refaults = {key: [float(reading.refaults) for reading in rounds_read] for key, rounds_read in readings.items()}
    print("\n" + picture.table(latencies(readings), shares, refaults) + "\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="end after the rounds instead of going on until Ctrl-C")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--only", choices=sorted(PHASES), default=None, help="one kind of hogs")
    without = (AS_ORDINARY, AS_BEST_EFFORT)
    parser.add_argument("--without", choices=without, action="append", default=[], help="leave a phase out")
    parser.add_argument("--svg", type=Path, default=None, help="where to draw the chart, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C, with cleanup
    with tempfile.TemporaryDirectory(prefix="koord-colocation-") as scratch:
        stage = Stage(Path(scratch))
        kinds = [kind for kind in PHASES if options.only in (None, kind) and (kind != "disk" or stage.disk is not None)]
        readings: Rounds = {
            (kind, phase): [] for kind in kinds for phase in PHASES[kind] if phase not in options.without
        }
        try:
            stage.open()
            if stage.disk is None:
                print(f"# {scratch} is on no disk of its own: no disk hogs")
            cost = stage.calibrate(LOAD)
            print(f"# a request costs {cost * 1e3:.2f} ms of CPU; {stage.rates['cpu']:.0f} a second are due")
            for turn in range(2 * options.rounds) if options.once else itertools.count():
                if options.once and turn >= options.rounds and complete(readings, options.rounds):
                    break
                print(f"# round {turn + 1}, {time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}", flush=True)
                play_round(stage, readings, options.seconds, backwards=turn % 2 == 1)
                show(readings)
        except KeyboardInterrupt:
            print("\n# interrupted: cleaning up")
        finally:
            stage.close()
    if not all(readings.values()):
        print("# no round was finished")
        return 1
    print(picture.bars(latencies(readings)) + "\n")
    if options.svg is not None:
        least = min(len(undisturbed(reading)) for reading in readings.values())
        note = (
            f"p99 by the service's client, {LOAD:.0%} load; medians of {least} readings or more of "
            f"{options.seconds:g} s; kernel {platform.release().partition('-')[0]}, {os.cpu_count()} CPUs"
        )
        options.svg.write_text(picture.svg("A service and batch work on one CPU", note, latencies(readings)))
    return report("colocation", figures(readings, stage.repeated))


if __name__ == "__main__":
    sys.exit(main())
