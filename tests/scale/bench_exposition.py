"""A /metrics page of a full node: koordlet's text writer compared with prometheus_client's, in one run, same samples.

Run: `python tests/scale/bench_exposition.py [--containers 220]`. First schedule latency: two histograms per container.
Then pressure, more than half of a page's lines on cgroup v2: a container's 18 figures as one row compared with 18 rows.
CPU is this process's; the fastest of several passes counts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from koordlet.app.exposition import MetricTable, Tails, packed_page, page
from tests.scale.figures import Figure, report

LABELS = ("node", "namespace", "pod", "pod_uid", "container", "container_id", "qos", "reason")
BOUNDS = (*(f"{8.192e-6 * 4**power:.9g}" for power in range(11)), "+Inf")
PRESSURES = tuple(itertools.product(("cpu", "mem", "io"), ("avg10", "avg60", "avg300"), ("some", "full")))
PASSES = 5


class Page(Collector):
    def __init__(self, rows: list[tuple[tuple[str, ...], list[int], float]], *, as_table: bool) -> None:
        self._rows, self._as_table = rows, as_table

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily("koordlet_sched_latency_seconds", "Waiting for a CPU.", labels=LABELS)
        if self._as_table:
            yield MetricTable(family, LABELS, self._rows, shared=6, bounds=BOUNDS)
            return
        for values, counts, total in self._rows:
            family.add_metric(values, list(zip(BOUNDS, counts, strict=True)), total)
        yield family


class Pressure(Collector):
    def __init__(self, rows: list[tuple[tuple[str, ...], Tails, list[float]]], *, grouped: bool) -> None:
        self._rows, self._grouped = rows, grouped

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        labels = (*LABELS[:6], "resource", "precision", "degree")
        family = GaugeMetricFamily("koordlet_container_psi", "Pressure.", labels=labels)
        if self._grouped:
            yield MetricTable(family, labels, self._rows, shared=6, grouped=3)
            return
        apart = range(len(PRESSURES))
        rows = [((*of, *tails[at]), figures[at]) for at in apart for of, tails, figures in self._rows]
        yield MetricTable(family, labels, rows, shared=6)


def samples(body: bytes) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(body.decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def best_ms(call: Callable[[], object]) -> float:
    costs = []
    for _ in range(PASSES):
        began = time.process_time_ns()
        call()
        costs.append((time.process_time_ns() - began) / 1e6)
    return min(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=220)
    options = parser.parse_args()
    rows = [
        (
            tuple(str(uuid.uuid4()) for _ in LABELS),
            [number * at for at in range(len(BOUNDS))],
            number / 7,
        )
        for number in range(2 * options.containers)
    ]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    ours.register(Page(rows, as_table=True))
    theirs.register(Page(rows, as_table=False))
    body = page([ours])
    if samples(body) != samples(generate_latest(theirs)):
        print("the two pages differ")
        return 1
    pressure = [(of[:6], PRESSURES, [at % 97 / 100 for at in range(len(PRESSURES))]) for of, _, _ in rows[::2]]
    together, apart = CollectorRegistry(), CollectorRegistry()
    together.register(Pressure(pressure, grouped=True))  # type: ignore[arg-type]
    apart.register(Pressure(pressure, grouped=False))  # type: ignore[arg-type]
    if sorted(page([together]).splitlines()) != sorted(page([apart]).splitlines()):
        print("the two pages of pressure differ")
        return 1
    one_row, many_rows = best_ms(lambda: packed_page([together])), best_ms(lambda: packed_page([apart]))
    fast, plain = best_ms(lambda: page([ours])), best_ms(lambda: generate_latest(theirs))
    return report(
        "exposition",
        [
            Figure("exposition_page_size", len(body) / 1e6, "MB"),
            Figure("exposition_page", fast, "ms"),
            Figure("exposition_packed", best_ms(lambda: packed_page([ours])), "ms"),
            Figure("exposition_prometheus_client", plain, "ms"),
            Figure("exposition_ratio", fast / plain, "ratio", 0.3),
            Figure("exposition_pressure_packed", one_row, "ms"),
            Figure("exposition_pressure_ratio", one_row / many_rows, "ratio", 0.8),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
