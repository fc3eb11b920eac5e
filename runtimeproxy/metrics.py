"""Metric families of the proxy. Served on `--metrics-addr`, listed in docs/runtime-proxy.md."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, counter, gauge, histogram

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class ProxyMetrics(MetricSet):
    """Calls and connections are counted by the CRI and Docker code, hooks by dispatcher and interceptor."""

    calls = counter(
        "koord_runtime_proxy_calls",
        "Intercepted calls by method and result: passed, rewritten, refused, failed.",
        "method",
        "result",
    )
    hook_seconds = histogram(
        "koord_runtime_proxy_hook_seconds",
        "Duration of hook calls, failed ones included, by hook.",
        "hook",
        buckets=_BUCKETS,
    )
    hook_failures = counter(
        "koord_runtime_proxy_hook_failures",
        "Failed hooks (no response, or an invalid one), by hook and applied failure policy.",
        "hook",
        "policy",
    )
    unhooked = counter(
        "koord_runtime_proxy_unhooked", "Calls forwarded without calling a registered hook, by reason.", "reason"
    )
    connections = gauge("koord_runtime_proxy_connections", "Open client connections.")
    malformed = counter(
        "koord_runtime_proxy_malformed_connections", "Client connections closed because of invalid HTTP/2 frames."
    )
    recoveries = counter(
        "koord_runtime_proxy_recoveries", "Objects restored from the runtime at start, by kind.", "kind"
    )
