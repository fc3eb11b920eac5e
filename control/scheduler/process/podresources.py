"""/metrics/resources: requests and limits of every pod that has not terminated, with kube-scheduler's metric names.

A large cluster has several hundred thousand series. They are not stored, but written for each request, 250 pods at a
time, so that scheduling continues in between. A replica that is not the leader serves an empty page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated, pod_limits, pod_requests
from koordlet.api.encoding.quantity import Quantity

_PODS_PER_WRITE: Final = 250
_BYTES: Final = ("memory", "storage", "ephemeral-storage")
FAMILIES: Final[tuple[tuple[str, str, Callable[[Pod], Mapping[str, Quantity]]], ...]] = (
    ("kube_pod_resource_request", "Resources requested by a pod.", pod_requests),
    ("kube_pod_resource_limit", "Resource limits of a pod.", pod_limits),
)


def series(name: str, pod: Pod, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    """One line for each resource that is not 0."""
    spec, meta = pod.spec, pod.metadata
    priority = "" if spec.priority is None else str(spec.priority)
    labels = (
        f'namespace="{meta.namespace}",pod="{meta.name}",node="{spec.node_name}",'
        f'scheduler="{spec.scheduler_name}",priority="{priority}"'
    )
    for resource, amount in amounts.items():
        value = amount.milli_value() / 1000 if resource == "cpu" else float(amount.value())
        if value:
            yield f'{name}{{{labels},resource="{resource}",unit="{unit(resource)}"}} {value!r}\n'


def unit(resource: str) -> str:
    if resource == "cpu":
        return "cores"
    return "bytes" if resource in _BYTES or resource.startswith("hugepages-") else "integer"


def routes(pods: Callable[[], Iterable[Pod]], leads: Callable[[], bool]) -> list[web.RouteDef]:
    """For `koordlet.app.http.Server`."""

    async def page(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
        await response.prepare(request)
        active = [pod for pod in pods() if not is_terminated(pod)] if leads() else []
        for name, text, amounts in FAMILIES if active else ():
            await response.write(f"# HELP {name} {text}\n# TYPE {name} gauge\n".encode())
            for begin in range(0, len(active), _PODS_PER_WRITE):
                pods_written = active[begin : begin + _PODS_PER_WRITE]
                lines = (line for pod in pods_written for line in series(name, pod, amounts(pod)))
                await response.write("".join(lines).encode())
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    return [web.get("/metrics/resources", page)]
