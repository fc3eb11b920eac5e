"""A batch that the metric cache rejects is counted with the cause `series`, for every collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.usage.hostapps import HostAppMemory
from koordlet.metricsadvisor.usage.readings import Readings
from koordlet.metricsadvisor.usage.usecollector import UseCollector, UseOptions
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.cgroup.batch import CgroupTable

_NONE = np.zeros(0)
READING = Readings(
    at=0.0,
    workloads=Workloads(),
    table=CgroupTable((), _NONE.astype(np.uint64), _NONE.astype(bool), {}),
)


class Refusing(MetricCache):
    """Rejects every batch."""

    def commit(self, batch: Batch) -> None:
        raise SeriesError("no such series")


def _use(cache: MetricCache, registries: Registries) -> None:
    readings = iter((READING, replace(READING, at=1.0)))
    reader: Any = SimpleNamespace(read=lambda workloads, at: next(readings), errors={})
    collector = UseCollector(
        reader, Workloads, cache, registries, node_of_cpu=dict, pods_known=lambda: True, options=UseOptions()
    )
    collector.tick()
    collector.tick()


def _host_apps(cache: MetricCache, registries: Registries) -> None:
    HostAppMemory(SimpleNamespace(), Workloads, cache, registries).read()  # type: ignore[arg-type]


COLLECTORS: dict[str, Callable[[MetricCache, Registries], None]] = {
    "use": _use,
    "host_application": _host_apps,
}


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_refused_batch_is_counted_as_series(name: str) -> None:
    registries = Registries()
    registries.node = "n"
    COLLECTORS[name](Refusing(), registries)
    counted = [
        (sample.labels["collector"], sample.labels["cause"], sample.value)
        for family in registries.internal.collect()
        for sample in family.samples
        if sample.name == "koordlet_collector_failures_total"
    ]
    assert counted == [(name, "series", 1)]
