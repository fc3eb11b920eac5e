"""Tables and figures from the readings of the rounds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from tests.scale.colocation_real.node import RealReading
from tests.scale.colocation_real.outputs import mean
from tests.scale.colocation_real.plan import ALONE, BATCH_ONLY, PHASES, RECOMMENDED, PlannedReading, alone
from tests.scale.figures import Figure

SLOWDOWN = 1.1
"""Budget of p99 with the recommended profile, in multiples of p99 alone."""
Rounds = Mapping[PlannedReading, Sequence[RealReading]]


def undisturbed(readings: Sequence[RealReading]) -> Sequence[RealReading]:
    """All readings if every one is disturbed."""
    return [reading for reading in readings if not reading.disturbed] or readings


def p99(rounds: Rounds, planned: PlannedReading, service: str) -> float:
    """Milliseconds, the median over the rounds."""
    return median(reading.percentile(service, 99) for reading in undisturbed(rounds[planned]))


def achieved(rounds: Rounds, planned: PlannedReading) -> float:
    """What the jobs achieved as a share of what they achieve without services; the mean over the class's programs."""
    without = rounds[PlannedReading(planned.batch, BATCH_ONLY)]
    return mean(_rate(rounds[planned], program) / max(_rate(without, program), 1e-9) for program in without[0].rates)


def _rate(readings: Sequence[RealReading], program: str) -> float:
    return median(reading.rates[program] for reading in undisturbed(readings))


def table(rounds: Rounds, services: Sequence[str]) -> str:
    """One line for each class and phase: p99 of every service in ms with its multiple of alone, and the batch work."""
    head = f"{'batch':<14}{'phase':<13}" + "".join(f"{name + ' p99':>20}" for name in services)
    lines = [head + f"{'batch achieved':>16}{'cores s+b':>11}"]
    for planned in sorted(rounds, key=lambda planned: (_first(rounds, planned.batch), PHASES.index(planned.phase))):
        readings = rounds[planned]
        if not readings:
            continue
        line = f"{planned.batch:<14}{planned.phase:<13}"
        for name in services:
            line += f"{_cell(rounds, planned, name):>20}"
        share = "" if planned.phase == ALONE or not _done(rounds, planned) else f"{achieved(rounds, planned):.0%}"
        cores = f"{median(x.service_cores for x in readings):.2f}+{median(x.batch_cores for x in readings):.2f}"
        lines.append(f"{line}{share:>16}{cores:>11}")
    return "\n".join(lines)


def _first(rounds: Rounds, batch: str) -> int:
    return next(place for place, planned in enumerate(rounds) if planned.batch == batch)


def _done(rounds: Rounds, planned: PlannedReading) -> bool:
    return bool(rounds[PlannedReading(planned.batch, BATCH_ONLY)])


def _cell(rounds: Rounds, planned: PlannedReading, service: str) -> str:
    if planned.phase == BATCH_ONLY:
        return ""
    value = p99(rounds, planned, service)
    if planned.phase == ALONE or not rounds[alone(planned.batch)]:
        return f"{value:.2f} ms"
    return f"{value:.2f} ms x{value / p99(rounds, alone(planned.batch), service):.2f}"


def figures(rounds: Rounds, services: Sequence[str]) -> Iterator[Figure]:
    """p99 alone in ms, p99 of the other phases in multiples of it, and what the batch work achieved."""
    counted = [reading for readings in rounds.values() for reading in readings]
    yield Figure("colocation_real_readings", min(map(len, rounds.values())), "a phase")
    yield Figure("colocation_real_disturbed", sum(reading.disturbed for reading in counted), "readings")
    for planned in rounds:
        name = f"colocation_real_{planned.batch}_{planned.phase}".replace(" ", "_")
        for service in services if planned.phase != BATCH_ONLY else ():
            value = p99(rounds, planned, service)
            if planned.phase == ALONE:
                yield Figure(f"{name}_{service}_p99", value, "ms")
                continue
            bound = SLOWDOWN if planned.phase == RECOMMENDED else None
            ratio = value / p99(rounds, alone(planned.batch), service)
            spread = ratio * sum(
                _spread(rounds[planned_reading], service) for planned_reading in (planned, alone(planned.batch))
            )
            yield Figure(f"{name}_{service}_p99", ratio, "x alone", bound, spread=spread)
        if planned.phase not in (ALONE, BATCH_ONLY):
            yield Figure(f"{name}_achieved", 100 * achieved(rounds, planned), "% of batch only")


def _spread(readings: Sequence[RealReading], service: str) -> float:
    """Range of equal readings in multiples of their median; of all readings if fewer than two are undisturbed. A single
    reading tells nothing about the spread: infinite."""
    kept = undisturbed(readings)
    values = [reading.percentile(service, 99) for reading in (kept if len(kept) > 1 else readings)]
    return (max(values) - min(values)) / median(values) if len(values) > 1 else math.inf


def chart_rows(rounds: Rounds, service: str) -> dict[tuple[str, str], list[float]]:
    """(class, phase) -> p99 of every round in ms, as `picture.svg` needs them: alone first, in every class."""
    rows = {}
    for batch in dict.fromkeys(planned.batch for planned in rounds if planned.phase != ALONE):
        ordered = [alone(batch), *(planned for planned in rounds if planned.batch == batch)]
        for planned in ordered:
            if planned.phase != BATCH_ONLY:
                readings = undisturbed(rounds[planned])
                rows[batch, planned.phase] = [reading.percentile(service, 99) for reading in readings]
    return rows
