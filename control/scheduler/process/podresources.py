"""/metrics/resources: what every living pod requests and is limited to, under kube-scheduler's names.

Some hundred thousand series on a large cluster: they are not kept, but written when they are asked for, a few hundred
pods at a time, so that scheduling goes on meanwhile. A replica that does not lead has an empty page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated, pod_limits, pod_requests
from koordlet.api.encoding.quantity import Quantity

_SLICE: Final = 250
_BYTES: Final = ("memory", "storage", "ephemeral-storage")
FAMILIES: Final[tuple[tuple[str, str, Callable[[Pod], Mapping[str, Quantity]]], ...]] = (
    ("kube_pod_resource_request", "What a pod requests.", pod_requests),
    ("kube_pod_resource_limit", "What a pod is limited to.", pod_limits),
)


def series(name: str, pod: Pod, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    """One line for each resource that is not 0."""
    spec, meta = pod.spec, pod.metadata
    priority = "" if spec.priority is None else str(spec.priority)
    who = (
        f'namespace="{meta.namespace}",pod="{meta.name}",node="{spec.node_name}",'
        f'scheduler="{spec.scheduler_name}",priority="{priority}"'
    )
    for resource, amount in amounts.items():
        value = amount.milli_value() / 1000 if resource == "cpu" else float(amount.value())
        if value:
            yield f'{name}{{{who},resource="{resource}",unit="{unit(resource)}"}} {value!r}\n'


def unit(resource: str) -> str:
    if resource == "cpu":
        return "cores"
    return "bytes" if resource in _BYTES or resource.startswith("hugepages-") else "integer"


def routes(pods: Callable[[], Iterable[Pod]], leads: Callable[[], bool]) -> list[web.RouteDef]:
    """For `koordlet.app.http.Server`."""

    async def page(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
        await answer.prepare(request)
        living = [pod for pod in pods() if not is_terminated(pod)] if leads() else []
        for name, text, amounts in FAMILIES if living else ():
            await answer.write(f"# HELP {name} {text}\n# TYPE {name} gauge\n".encode())
            for begin in range(0, len(living), _SLICE):
                some: Any = (line for pod in living[begin : begin + _SLICE] for line in series(name, pod, amounts(pod)))
                await answer.write("".join(some).encode())
                await asyncio.sleep(0)
        await answer.write_eof()
        return answer

    return [web.get("/metrics/resources", page)]
