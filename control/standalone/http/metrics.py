"""Prometheus metrics of the server, with kube-apiserver's names where it has the metric."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from control.standalone.http.connectoptions import CONNECTS
from control.standalone.kinds import Kinds
from control.standalone.store import ObjectStore

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS = ("verb", "group", "version", "resource", "subresource")


class Metrics:
    def __init__(self, store: ObjectStore, kinds: Kinds, open_streams: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and HTTP code.",
            (*_LABELS, "code"),
            registry=self.registry,
        )
        self.latency = Histogram(
            "apiserver_request_duration_seconds",
            "Duration of requests, without watches and streams.",
            _LABELS,
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.inflight = Gauge("apiserver_current_inflight_requests", "Requests in progress.", registry=self.registry)
        watches = Gauge("apiserver_longrunning_requests", "Open watches and streams to pods.", registry=self.registry)
        watches.set_function(open_streams)
        self.registry.register(_StoreCollector(store, kinds))
        ProcessCollector(registry=self.registry)

    def observe(self, labels: tuple[str, str, str, str, str], code: int, seconds: float) -> None:
        self.requests.labels(*labels, str(code)).inc()
        if labels[0] != "watch" and labels[4] not in CONNECTS:
            self.latency.labels(*labels).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _StoreCollector(Collector):
    """Reads the store at each scrape, so that writes cost nothing."""

    def __init__(self, store: ObjectStore, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds

    def collect(self) -> list[GaugeMetricFamily]:
        objects = GaugeMetricFamily("apiserver_storage_objects", "Objects by resource.", labels=["resource"])
        for kind in self._kinds:
            if not kind.storage_key and (count := self._store.count(kind.stored_as)):
                objects.add_metric([f"{kind.plural}.{kind.group}".rstrip(".")], count)
        revision = GaugeMetricFamily("apiserver_storage_resource_version", "Newest version.", self._store.revision)
        compacted = GaugeMetricFamily(
            "apiserver_storage_compacted_version", "Oldest version that can be listed.", self._store.compacted
        )
        size = GaugeMetricFamily("apiserver_storage_size_bytes", "Bytes of database and WAL.", self._store.size_bytes())
        return [objects, revision, compacted, size]
