"""Pages under /apis/v1/: the state of plugins and of the node table as JSON (spec 05 §6).

A replica that is not the leader responds with 503, because its state is not the one that decisions are based on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, Final

from aiohttp import web

from control.scheduler.framework.plugin import Plugin
from control.scheduler.state.nodeimages import images_of
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import CPU, MEMORY, PODS, STORAGE, NodeTable
from koordlet.api.encoding import wire
from koordlet.api.pages.placement import PodPlacement

PREFIX: Final = "/apis/v1"
_NAMES: Final = {CPU: "MilliCPU", MEMORY: "Memory", STORAGE: "EphemeralStorage", PODS: "AllowedPodNumber"}


class Services:
    """See the module text."""

    def __init__(
        self,
        table: NodeTable,
        plugins: Iterable[Plugin],
        leads: Callable[[], bool],
        explain: Callable[[str, str], PodPlacement] | None = None,
    ) -> None:
        """`leads`: whether this replica is the leader. `explain(namespace, pod)`: see `PodLookup.explain`."""
        self._table = table
        self._leads = leads
        self._pages: dict[str, Callable[..., Any]] = {
            f"{PREFIX}/__services__": self.listing,
            f"{PREFIX}/nodes/{{node}}": self.node,
        }
        if explain is not None:
            self._pages[f"{PREFIX}/explain/{{namespace}}/{{pod}}"] = explain
        for plugin in plugins:
            for path, handler in plugin.routes().items():
                self._pages.setdefault(f"{PREFIX}/plugins/{plugin.name}/{path}", handler)

    def routes(self) -> list[web.RouteDef]:
        """For `koordlet.app.http.Server`."""
        return [web.get(path, self._served(handler)) for path, handler in self._pages.items()]

    def listing(self) -> dict[str, list[str]]:
        return {"GET": sorted(self._pages)}

    def node(self, node: str) -> dict[str, Any]:
        """The pods and resources counted on a node. Raises LookupError for an unknown node."""
        table = self._table
        row = table.rows.get(node)
        if row is None:
            raise LookupError(f"cannot find node {node}")
        allocatable, requested = table.allocatable[:, row], table.requested[:, row]
        pods = sorted(table.pods[row].values(), key=lambda pod: pod.key)
        node_object = table.nodes[row]
        return {
            "node": None if node_object is None else wire.to_builtins(node_object),
            "pods": [wire.to_builtins(pod.pod) for pod in pods],
            "podsWithAffinity": [wire.to_builtins(pod.pod) for pod in pods if _affinity(pod)],
            "podsWithRequiredAntiAffinity": [wire.to_builtins(pod.pod) for pod in pods if _anti_affinity(pod)],
            "usedPorts": _ports(pods),
            "requested": self._amounts(requested),
            "nonZeroRequested": {"MilliCPU": int(table.nonzero[CPU, row]), "Memory": int(table.nonzero[MEMORY, row])},
            "remaining": self._amounts(allocatable - requested),
            "allocatable": self._amounts(allocatable),
            "imageStates": self._images(row),
            "pvcRefCounts": _claims(pods),
            "generation": table.node_log.last(row) + table.pod_log.last(row),
        }

    def _images(self, row: int) -> dict[str, dict[str, int]]:
        """The node's images by each of their names, with the number of nodes that have them."""
        own = {id(image): image for image in images_of(self._table.nodes[row])}  # equal images share one object
        nodes = self._table.nodes if own else ()
        counts = Counter(id(image) for node in nodes for image in images_of(node) if id(image) in own)
        return {
            name: {"Size": image.size_bytes, "NumNodes": counts[number]}
            for number, image in own.items()
            for name in image.names
        }

    def _amounts(self, column: Any) -> dict[str, Any]:
        amounts: dict[str, Any] = {name: int(column[number]) for number, name in _NAMES.items()}
        amounts["ScalarResources"] = {
            name: int(column[number])
            for name, number in self._table.resources.items()
            if number not in _NAMES and column[number]
        }
        return amounts

    def _served(self, handler: Callable[..., Any]) -> Callable[[web.Request], Any]:
        query = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature(handler).parameters.values())

        async def respond(request: web.Request) -> web.Response:
            if not self._leads():
                return web.json_response({"message": "the instance is not leader"}, status=503)
            try:
                arguments = {**request.query, **request.match_info} if query else request.match_info
                result = handler(**arguments)
            except LookupError as error:
                return web.json_response({"message": str(error.args[0] if error.args else error)}, status=404)
            except RuntimeError as error:
                return web.json_response({"message": str(error)}, status=500)
            return web.Response(body=wire.encode(result), content_type="application/json")

        return respond


def _affinity(pod: PodInfo) -> bool:
    affinity = pod.pod.spec.affinity
    return affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)


def _anti_affinity(pod: PodInfo) -> bool:
    affinity = pod.pod.spec.affinity
    terms = affinity.pod_anti_affinity if affinity is not None else None
    return terms is not None and bool(terms.required_during_scheduling_ignored_during_execution)


def _ports(pods: Iterable[PodInfo]) -> Mapping[str, list[dict[str, Any]]]:
    by_address: dict[str, list[dict[str, Any]]] = {}
    for pod in pods:
        for container in pod.pod.spec.containers:
            for port in container.ports:
                if port.host_port:
                    used = {"Protocol": port.protocol or "TCP", "Port": port.host_port}
                    by_address.setdefault(port.host_ip or "0.0.0.0", []).append(used)
    return by_address


def _claims(pods: Iterable[PodInfo]) -> dict[str, int]:
    references: dict[str, int] = {}
    for pod in pods:
        for volume in pod.pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                key = f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
                references[key] = references.get(key, 0) + 1
    return references
