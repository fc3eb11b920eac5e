"""DELETE /metrics: what accumulates restarts at zero and goes on counting."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from control.component.metricsreset import reset


def test_everything_that_accumulates_restarts_at_zero() -> None:
    registry = CollectorRegistry()
    total = Counter("total", "t", registry=registry)
    labelled = Counter("labelled", "l", ["a"], registry=registry)
    child = labelled.labels("x")
    seconds = Histogram("seconds", "s", ["a"], buckets=(1.0, 2.0), registry=registry)
    size = Summary("size", "s", registry=registry)
    state = Gauge("state", "s", registry=registry)
    for _ in range(3):
        total.inc()
        child.inc(2)
        seconds.labels("x").observe(1.5)
        size.observe(7)
        state.set(5)
    reset(registry)
    sample = registry.get_sample_value
    assert (sample("total_total"), sample("labelled_total", {"a": "x"}), sample("size_sum")) == (0.0, 0.0, 0.0)
    assert sample("seconds_bucket", {"a": "x", "le": "2.0"}) == sample("seconds_count", {"a": "x"}) == 0.0
    assert sample("state") == 5.0
    child.inc()
    seconds.labels("x").observe(0.5)
    assert (sample("labelled_total", {"a": "x"}), sample("seconds_sum", {"a": "x"})) == (1.0, 0.5)
