"""DELETE /metrics: counters, histograms and summaries restart at zero, as in Kubernetes' components (spec 05 §1.2).

Gauges keep their values, because they show the present state. Series stay, with the value 0: code that holds a child of
a labelled metric continues to count in it.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.metrics import MetricWrapperBase

from koordlet.app.logging import get_logger

log = get_logger(__name__)


def reset_route(registry: CollectorRegistry) -> web.RouteDef:
    """Callers need the permission `delete` for `/metrics`."""

    async def reset_page(request: web.Request) -> web.Response:
        reset(registry)
        log.info("Reset metrics", remote=request.remote)
        return web.Response(text="metrics reset\n")

    return web.delete("/metrics", reset_page)


def reset(registry: CollectorRegistry) -> None:
    """Set everything that accumulates to zero."""
    for collector in list(registry._collector_to_names):  # the registry has no public list of its collectors
        if isinstance(collector, Counter | Histogram | Summary):
            for metric in getattr(collector, "_metrics", {"": collector}).values():  # its children by labels, or itself
                _zero(metric)


def _zero(metric: MetricWrapperBase) -> None:
    create_values: Callable[[], None] = metric._metric_init  # Histogram and Summary have no public method for it
    create_values()
