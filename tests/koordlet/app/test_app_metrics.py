"""Declared metrics: created once per registry, with labels and buckets; names without `_total` where Koordinator's have
none."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from koordlet.app.metrics import MetricSet, counter, gauge, histogram, unsuffixed_counter


class Requests(MetricSet):
    """One metric of each kind."""

    answered = counter("answered_total", "Answered requests.", "verb", "code")
    active = gauge("active", "Requests in progress.")
    seconds = histogram("seconds", "Duration.", "verb", buckets=(0.5, 1.0))
    steps = unsuffixed_counter("step_count", "Steps.", "reason")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_every_declared_metric_is_exported(registry: CollectorRegistry) -> None:
    requests = Requests.of(registry)
    requests.answered.labels("GET", "200").inc(2)
    requests.active.set(3)
    requests.seconds.labels("GET").observe(0.75)
    requests.steps.labels("start").inc()
    assert [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"] == [
        'answered_total{code="200",verb="GET"} 2.0',
        "active 3.0",
        'seconds_bucket{le="0.5",verb="GET"} 0.0',
        'seconds_bucket{le="1.0",verb="GET"} 1.0',
        'seconds_bucket{le="+Inf",verb="GET"} 1.0',
        'seconds_count{verb="GET"} 1.0',
        'seconds_sum{verb="GET"} 0.75',
        'step_count{reason="start"} 1.0',
    ]


def test_a_registry_has_one_set_and_registries_share_nothing(registry: CollectorRegistry) -> None:
    requests = Requests.of(registry)
    assert Requests.of(registry) is requests
    other = Requests.of(CollectorRegistry())
    other.active.set(1)
    assert registry.get_sample_value("active") == 0
