"""A batch that the metric cache refuses is counted under one cause, whichever collector made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.metricsadvisor.usage.hostapps import HostAppMemory
from koordlet.probes.openprobes import ProbeSet
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.host import Host
from koordlet.system.roots import Roots


class Refusing(MetricCache):
    """Takes nothing."""

    def commit(self, batch: Batch) -> None:
        raise SeriesError("no such series")


def _advisor(cache: MetricCache, registries: Registries) -> None:
    made = MetricsAdvisor(
        Host(Roots.host()), SimpleNamespace(), Workloads, cache, registries,  # type: ignore[arg-type]
        probes=ProbeSet({}), index=CgroupIndex(lambda: ()), clock=lambda: 0.0,
    )  # fmt: skip
    made._commit("use", lambda: Batch(0.0))


def _probe(kind: Callable[..., Any], **more: Any) -> Callable[[MetricCache, Registries], None]:
    def run(cache: MetricCache, registries: Registries) -> None:
        index = CgroupIndex(lambda: ())
        kind(None, Workloads, cache, registries, index=index, clock=lambda: 0.0, **more)._commit(0.0)

    return run


def _host_apps(cache: MetricCache, registries: Registries) -> None:
    HostAppMemory(SimpleNamespace(), Workloads, cache, registries).read()  # type: ignore[arg-type]


COLLECTORS: dict[str, Callable[[MetricCache, Registries], None]] = {
    "use": _advisor,
    "block_io": _probe(BlockIOCollector, sys=Path("/nowhere")),
    "mem_stall": _probe(MemStallCollector, limits=CgroupIndex(lambda: ())),
    "net_stall": _probe(NetStallCollector),
    "host_application": _host_apps,
}


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_refused_batch_is_counted_as_series(name: str) -> None:
    registries = Registries()
    registries.node = "n"
    COLLECTORS[name](Refusing(), registries)
    counted = [
        (one.labels["collector"], one.labels["cause"], one.value)
        for family in registries.internal.collect()
        for one in family.samples
        if one.name == "koordlet_collector_failures_total"
    ]
    assert counted == [(name, "series", 1)]
