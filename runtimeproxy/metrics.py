"""The proxy's metric families, one set a process. Served on `--metrics-addr` by the server, listed in
docs/runtime-proxy.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.metrics import MetricSet

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class ProxyMetrics(MetricSet):
    """Families of calls and connections are counted by the protocol sides, those of hooks by dispatcher and
    interceptor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "koord_runtime_proxy_calls",
            "Intercepted calls by method and result: passed, rewritten, refused, failed.",
            ["method", "result"],
            registry=registry,
        )
        self.hook_seconds = Histogram(
            "koord_runtime_proxy_hook_seconds",
            "Time that a hook server took to answer or to fail, by hook.",
            ["hook"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.hook_failures = Counter(
            "koord_runtime_proxy_hook_failures",
            "Hooks that did not answer, answered nonsense or what is not allowed, by hook and the policy then applied.",
            ["hook", "policy"],
            registry=registry,
        )
        self.unhooked = Counter(
            "koord_runtime_proxy_unhooked",
            "Calls forwarded without asking a hook that was registered for them, by reason.",
            ["reason"],
            registry=registry,
        )
        self.connections = Gauge(
            "koord_runtime_proxy_connections", "Client connections that are open.", registry=registry
        )
        self.malformed = Counter(
            "koord_runtime_proxy_malformed_connections",
            "Client connections closed because one of their peers sent what is no HTTP/2.",
            registry=registry,
        )
        self.recoveries = Counter(
            "koord_runtime_proxy_recoveries",
            "Objects found in the runtime when the store was rebuilt at start, by kind.",
            ["kind"],
            registry=registry,
        )
