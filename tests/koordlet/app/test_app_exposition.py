"""Pages say what prometheus_client's say, line for line; only labels stand in their own order, `le` last."""

import gzip
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, DrawFn, SearchStrategy
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Summary, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families

from koordlet.app.exposition import MetricTable, packed_page, page, sliced_page
from koordlet.app.metrics import MetricSet

VALUES = st.one_of(st.floats(), st.integers(0, 10**12).map(float), st.sampled_from([0.0, -0.0, 1e6, 1234567.0, 1e21]))
TEXT = st.text(max_size=8) | st.sampled_from(["a\\b", 'say "x"', "two\nlines", "zoë", ""])
NAMES = ("node", "zone", "container", "le_not", "aa")
KINDS = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "unknown": UnknownMetricFamily,
    "histogram": HistogramMetricFamily,
}


def samples_of(body: bytes) -> tuple[list[str], list[tuple[str, dict[str, str], str]]]:
    """A page's lines, each sample as a parser reads it: NaN by its text."""
    text = body.decode()
    heads = [line for line in text.split("\n") if line.startswith("# ")]
    samples = [
        (sample.name, sample.labels, repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    return heads, samples


class One:
    def __init__(self, metric: MetricTable | GaugeMetricFamily | CounterMetricFamily) -> None:
        self.metric = metric

    def collect(self) -> Iterator[MetricTable | GaugeMetricFamily]:
        yield self.metric  # type: ignore[misc]

    def describe(self) -> list[Any]:
        return []


def registries(
    kind: str,
    labels: list[str],
    rows: list[tuple[Any, ...]],
    *,
    fixed: int = 0,
    shared: int = 0,
    grouped: int = 0,
    bounds: tuple[str, ...] = (),
) -> list[CollectorRegistry]:
    """The same family as a table and as prometheus_client's own. *fixed* labels have the values of the first row.
    Rows of *grouped* figures have NaN where there is none."""
    name = "koordlet_some_total" if kind == "counter" else "koordlet_some"
    registries = []
    front = tuple(rows[0][0][:fixed]) if rows else ("",) * fixed
    for as_table in (True, False):
        metric = KINDS[kind](name, "Help with \\ and\nmore.", labels=labels)
        if as_table:
            own = [(values[fixed:], *figures) for values, *figures in rows]
            metric = MetricTable(metric, labels, own, fixed=front, shared=shared, grouped=grouped, bounds=bounds)
        else:
            for values, *figures in rows:
                if grouped:
                    for tail, figure in zip(*figures, strict=True):
                        if not math.isnan(figure):
                            metric.add_metric([*front, *values[fixed:], *tail], figure)
                    continue
                if bounds:
                    figures[0] = list(zip(bounds, figures[0], strict=True))
                metric.add_metric([*front, *values[fixed:]], *figures)
        registry = CollectorRegistry()
        registry.register(One(metric))
        registries.append(registry)
    return registries


@st.composite
def families(draw: DrawFn, figures: list[SearchStrategy[Any]]) -> tuple[list[str], list[tuple[Any, ...]], int, int]:
    """Labels, rows, and how many of the labels are fixed and shared."""
    labels = draw(st.lists(st.sampled_from(NAMES), unique=True))
    values = st.lists(TEXT, min_size=len(labels), max_size=len(labels))
    rows = draw(st.lists(st.tuples(values, *figures), max_size=5))
    fixed = draw(st.integers(0, len(labels)))
    return labels, rows, fixed, draw(st.integers(0, len(labels) - fixed))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "histogram"])
@given(family=families([VALUES]))
def test_families_of_single_values(
    kind: str, family: tuple[list[str], list[tuple[list[str], float]], int, int]
) -> None:
    labels, rows, fixed, shared = family
    table, plain = registries(kind, labels, rows, fixed=fixed, shared=shared)
    assert samples_of(page([table])) == samples_of(generate_latest(plain))


@given(data=st.data())
def test_rows_of_several_figures(data: DataObject) -> None:
    labels, rows, fixed, shared = data.draw(families([]))
    apart = [f"apart{number}" for number in range(data.draw(st.integers(1, 2)))]
    tail = st.tuples(*[TEXT for _ in apart])
    rows = [
        (values, tuple(tails), [data.draw(VALUES) for _ in tails])
        for (values,) in rows
        for tails in [data.draw(st.lists(tail, min_size=1, max_size=3))]
    ]
    kind = data.draw(st.sampled_from(["gauge", "counter"]))
    table, plain = registries(kind, [*labels, *apart], rows, fixed=fixed, shared=shared, grouped=len(apart))
    assert samples_of(page([table])) == samples_of(generate_latest(plain))
    family = next(iter(table._collector_to_names)).metric  # type: ignore[attr-defined]
    assert samples_of(generate_latest(One(family))) == samples_of(generate_latest(plain))


@given(bounds=st.sampled_from([("0.1", "1.0", "+Inf"), ("+Inf",), ("-1.0", "+Inf")]), data=st.data())
def test_histograms(bounds: tuple[str, ...], data: DataObject) -> None:
    counts = st.lists(st.integers(0, 2**60), min_size=len(bounds), max_size=len(bounds))
    labels, rows, fixed, shared = data.draw(families([counts, VALUES]))
    table, plain = registries("histogram", labels, rows, fixed=fixed, shared=shared, bounds=bounds)
    assert samples_of(page([table])) == samples_of(generate_latest(plain))


def test_labels_stand_in_the_familys_order() -> None:
    table, _ = registries("histogram", ["node", "a"], [(["n", "%d\0"], [5], 2.5)], fixed=1, shared=1, bounds=["+Inf"])  # type: ignore[arg-type]
    assert page([table]).decode().splitlines()[2:] == [
        'koordlet_some_bucket{node="n",a="%d\0",le="+Inf"} 5',
        'koordlet_some_count{node="n",a="%d\0"} 5',
        'koordlet_some_sum{node="n",a="%d\0"} 2.5',
    ]


def test_families_that_share_labels_do_not_mix_them_up() -> None:
    registry = CollectorRegistry()
    for name, labels in (("one", ["node", "pod"]), ("two", ["node", "pod"]), ("three", ["node", "container"])):
        rows = [(("x",), 1), (("y",), 2)]
        registry.register(
            One(MetricTable(GaugeMetricFamily(name, "help", labels=labels), labels, rows, fixed="n", shared=1))
        )
    assert [line for line in page([registry]).decode().splitlines() if line[0] != "#"] == [
        f'{name}{{node="n",{label}="{value}"}} {number}'
        for name, label in (("one", "pod"), ("two", "pod"), ("three", "container"))
        for value, number in (("x", 1), ("y", 2))
    ]


def test_a_table_is_a_family_for_everybody_else_too() -> None:
    table, plain = registries("histogram", ["node"], [(["n1"], [2, 3], 4.5)], fixed=1, bounds=["1.0", "+Inf"])  # type: ignore[arg-type]
    assert generate_latest(table) == generate_latest(plain)
    assert generate_latest(table) == generate_latest(plain), "asking twice adds nothing"


def test_several_registries_and_metrics_that_are_no_tables() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    Counter("seen", "Things\nseen.", ["what", "by"], registry=first).labels('x "y"\n', "z").inc(math.pi)
    Histogram("took", "Seconds.", ["task"], registry=first).labels("t").observe(0.3)
    Summary("size", "Bytes.", registry=first).observe(7)
    Gauge("level", "Level.", registry=first).set(-math.inf)
    Info("build", "Version.", registry=first).info({"version": "1"})
    late = GaugeMetricFamily("late", "With a time.")
    late.add_metric([], 1.5, timestamp=12.25)
    first.register(One(late))
    table, plain = registries("gauge", ["a"], [(["b"], math.nan)])
    second.register(next(iter(table._collector_to_names)))
    assert samples_of(page([first, second])) == samples_of(generate_latest(first) + generate_latest(plain))
    assert gzip.decompress(packed_page([first, second])) == page([first, second])


def test_a_large_page_is_whole() -> None:
    """More rows than are formatted at a time, and more labels than are remembered."""
    rows = [((str(number), "x" * (number % 7)), float(number)) for number in range(5000)]
    table, plain = registries("gauge", ["aa", "node"], rows, shared=1)
    assert samples_of(page([table])) == samples_of(generate_latest(plain))
    assert gzip.decompress(packed_page([table])) == page([table])


async def test_a_page_in_slices_is_the_same_page() -> None:
    registry = CollectorRegistry()
    Counter("sliced", "help", ["a"], registry=registry).labels("b").inc(3)
    rows = [((str(number),), float(number)) for number in range(3000)]
    registry.register(One(MetricTable(GaugeMetricFamily("rows", "help", labels=["n"]), ["n"], rows)))
    assert await sliced_page([registry], packed=False) == page([registry])
    assert gzip.decompress(await sliced_page([registry], packed=True)) == page([registry])


class Calls(MetricSet):
    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter("calls", "Calls.", ["kind"], registry=registry)
        self.took = Histogram("took", "Time.", registry=registry)


def test_creation_times_of_counters_are_not_exported() -> None:
    registry = CollectorRegistry()
    calls = Calls.of(registry)
    calls.calls.labels("a").inc()
    calls.took.observe(1)
    for text in (generate_latest(registry).decode(), page([registry]).decode()):
        assert 'calls_total{kind="a"} 1.0' in text
        assert "took_count 1.0" in text
        assert "_created" not in text
