"""Pages are byte for byte what prometheus_client writes."""

import gzip
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    UnknownMetricFamily,
)

from koordlet.app.exposition import Table, packed_page, page, sliced_page

VALUES = st.one_of(st.floats(), st.integers(0, 10**12).map(float), st.sampled_from([0.0, -0.0, 1e6, 1234567.0, 1e21]))
TEXT = st.text(max_size=8) | st.sampled_from(["a\\b", 'say "x"', "two\nlines", "zoë", ""])
NAMES = ("node", "zone", "container", "le_not", "aa")
KINDS = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "unknown": UnknownMetricFamily,
    "histogram": HistogramMetricFamily,
}


class One:
    def __init__(self, metric):
        self.metric = metric

    def collect(self):
        yield self.metric

    def describe(self):
        return []


def registries(kind, labels, rows):
    """The same family as a table and as prometheus_client's own."""
    name = "koordlet_some_total" if kind == "counter" else "koordlet_some"
    found = []
    for as_table in (True, False):
        metric = KINDS[kind](name, "Help with \\ and\nmore.", labels=labels)
        if as_table:
            metric = Table(metric, labels, rows)
        else:
            for row in rows:
                metric.add_metric(*row)
        registry = CollectorRegistry()
        registry.register(One(metric))
        found.append(registry)
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "histogram"])
@given(data=st.data())
def test_families_of_single_values(kind, data):
    labels = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
    row = st.tuples(st.lists(TEXT, min_size=len(labels), max_size=len(labels)), VALUES)
    table, plain = registries(kind, labels, data.draw(st.lists(row, max_size=5)))
    assert page([table]) == generate_latest(plain)


@given(data=st.data())
def test_histograms(data):
    labels = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
    bounds = data.draw(st.sampled_from([("0.1", "1.0", "+Inf"), ("+Inf",), ("-1.0", "+Inf")]))
    counts = st.lists(VALUES, min_size=len(bounds), max_size=len(bounds))
    row = st.tuples(
        st.lists(TEXT, min_size=len(labels), max_size=len(labels)),
        counts.map(lambda found: list(zip(bounds, found, strict=True))),
        VALUES,
    )
    table, plain = registries("histogram", labels, data.draw(st.lists(row, max_size=4)))
    assert page([table]) == generate_latest(plain)


def test_a_table_is_a_family_for_everybody_else_too():
    table, plain = registries("histogram", ["node"], [(["n1"], [("1.0", 2.0), ("+Inf", 3.0)], 4.5)])
    assert generate_latest(table) == generate_latest(plain)
    assert generate_latest(table) == generate_latest(plain), "asking twice adds nothing"


def test_several_registries_and_metrics_that_are_no_tables():
    one, two = CollectorRegistry(), CollectorRegistry()
    Counter("seen", "Things seen.", ["what"], registry=one).labels("x").inc(math.pi)
    table, plain = registries("gauge", ["a"], [(["b"], math.nan)])
    two.register(next(iter(table._collector_to_names)))
    assert page([one, two]) == generate_latest(one) + generate_latest(plain)
    assert gzip.decompress(packed_page([one, two])) == page([one, two])


async def test_a_page_in_slices_is_the_same_page() -> None:
    registry = CollectorRegistry()
    Counter("sliced", "help", ["a"], registry=registry).labels("b").inc(3)
    rows = [((str(number),), float(number)) for number in range(3000)]
    registry.register(One(Table(GaugeMetricFamily("rows", "help", labels=["n"]), ["n"], rows)))
    assert await sliced_page([registry], packed=False) == page([registry])
    assert gzip.decompress(await sliced_page([registry], packed=True)) == page([registry])
