"""koord-runtime-proxy: calls, hooks, connections."""

from __future__ import annotations

from scripts.grafana.frame import Dashboard, Panel, Query, Row, Variable
from scripts.grafana.parts import quantile, rate, sum_by

_PREFIX = "koord_runtime_proxy"
_I = '{instance=~"$instance"}'

RUNTIME_PROXY_DASHBOARD = Dashboard(
    uid="koord-runtime-proxy",
    title="koordlet / Runtime proxy",
    description="Calls of kubelet or clients through koord-runtime-proxy, and its hooks.",
    variables=[Variable("instance", "instance", f"{_PREFIX}_connections", "Proxy")],
    rows=[
        Row(
            "Calls",
            [
                Panel(
                    "Intercepted calls",
                    "Intercepted calls per second by result: passed, rewritten, refused, failed.",
                    [Query(sum_by("result", rate(f"{_PREFIX}_calls_total", _I)), "{{result}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Intercepted calls by method",
                    "Intercepted calls per second by method.",
                    [Query(sum_by("method", rate(f"{_PREFIX}_calls_total", _I)), "{{method}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Calls without a hook",
                    "Calls per second that were forwarded without calling a registered hook, by reason.",
                    [Query(sum_by("reason", rate(f"{_PREFIX}_unhooked_total", _I)), "{{reason}}")],
                    unit="cps",
                    width=8,
                ),
            ],
        ),
        Row(
            "Hooks",
            [
                Panel(
                    "Duration",
                    "Median and 99th percentile of hook calls; the kubelet waits for them.",
                    [
                        Query(quantile(q, f"{_PREFIX}_hook_seconds", _I, "hook"), f"{name} {{{{hook}}}}")
                        for q, name in ((0.99, "p99"), (0.5, "p50"))
                    ],
                    unit="s",
                ),
                Panel(
                    "Failures",
                    "Failed hooks per second, by hook and applied failure policy.",
                    [Query(sum_by("hook, policy", rate(f"{_PREFIX}_hook_failures_total", _I)), "{{hook}} {{policy}}")],
                    unit="cps",
                ),
            ],
        ),
        Row(
            "Connections",
            [
                Panel(
                    "Open connections",
                    "Open client connections.",
                    [Query(f"{_PREFIX}_connections{_I}", "{{instance}}")],
                    width=8,
                ),
                Panel(
                    "Malformed connections",
                    "Connections per second closed because of invalid frames.",
                    [Query(rate(f"{_PREFIX}_malformed_connections_total", _I), "{{instance}}")],
                    unit="cps",
                    width=8,
                ),
                Panel(
                    "Restored objects",
                    "Pods and containers restored from the runtime at the start, by kind.",
                    [Query(f"{_PREFIX}_recoveries_total{_I}", "{{instance}} {{kind}}")],
                    width=8,
                ),
            ],
        ),
    ],
)
