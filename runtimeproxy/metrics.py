"""Metric families of the proxy. Served on `--metrics-addr`, listed in docs/runtime-proxy.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.metrics import MetricSet

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class ProxyMetrics(MetricSet):
    """Calls and connections are counted by the CRI and Docker code, hooks by dispatcher and interceptor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "koord_runtime_proxy_calls",
            "Intercepted calls by method and result: passed, rewritten, refused, failed.",
            ["method", "result"],
            registry=registry,
        )
        self.hook_seconds = Histogram(
            "koord_runtime_proxy_hook_seconds",
            "Duration of hook calls, failed ones included, by hook.",
            ["hook"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.hook_failures = Counter(
            "koord_runtime_proxy_hook_failures",
            "Failed hooks (no response, or an invalid one), by hook and applied failure policy.",
            ["hook", "policy"],
            registry=registry,
        )
        self.unhooked = Counter(
            "koord_runtime_proxy_unhooked",
            "Calls forwarded without calling a registered hook, by reason.",
            ["reason"],
            registry=registry,
        )
        self.connections = Gauge("koord_runtime_proxy_connections", "Open client connections.", registry=registry)
        self.malformed = Counter(
            "koord_runtime_proxy_malformed_connections",
            "Client connections closed because of invalid HTTP/2 frames.",
            registry=registry,
        )
        self.recoveries = Counter(
            "koord_runtime_proxy_recoveries",
            "Objects restored from the runtime at start, by kind.",
            ["kind"],
            registry=registry,
        )
