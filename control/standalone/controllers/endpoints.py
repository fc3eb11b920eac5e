"""EndpointSlices of Services: the addresses of the pods that a Service selects.

One slice for each Service with a selector, named after it and owned by it. There is no service network: the slices tell
the API server where webhooks answer, and users which pods a Service has.
"""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import ownership
from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself
from control.standalone.kinds import POD
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, WriteOptions

Json = dict[str, Any]

SERVICE, SLICE = "/services", "discovery.k8s.io/endpointslices"
MANAGED_BY = "endpointslice-controller.k8s.io"
MAX_ENDPOINTS = 1000
"""Kubernetes' limit of one slice; more pods are left out."""
_OPTIONS = WriteOptions(field_manager="kube-controller-manager")


class EndpointSlices(EmbeddedController):
    name = "endpointslices"

    def watches(self) -> dict[str, Mapper]:
        return {SERVICE: itself, POD: self._services_of, SLICE: _service_of}

    def _services_of(self, change: ObjectChange) -> list[Key]:
        namespace = change.object["metadata"]["namespace"]
        services = self.registry.store.list(SERVICE, namespace)
        return [(namespace, each["metadata"]["name"]) for each in services if selects(each, change.object)]

    async def reconcile(self, key: Key) -> float | None:
        service = self.registry.find(SERVICE, *key)
        if service is None or not _selector(service) or service["metadata"].get("deletionTimestamp"):
            return None
        pods = [pod for pod in self.registry.store.list(POD, key[0]) if selects(service, pod)]
        content = slice_content(service, [pod for pod in pods if not ownership.finished(pod)])
        old = self.registry.find(SLICE, *key)
        if old is None:
            await self.registry.create(SLICE, key[0], {**_new(service), **content}, SYSTEM, _OPTIONS)
        elif any(old.get(field) != value for field, value in content.items()):
            await ignore_missing(self.registry.update(SLICE, *key, {**old, **content}, SYSTEM, _OPTIONS))
        return None


def _service_of(change: ObjectChange) -> list[Key]:
    metadata = change.object["metadata"]
    labels = metadata.get("labels") or {}
    managed = labels.get("endpointslice.kubernetes.io/managed-by") == MANAGED_BY
    return [(metadata["namespace"], str(labels.get("kubernetes.io/service-name")))] if managed else []


def _selector(service: Json) -> Json:
    return (service.get("spec") or {}).get("selector") or {}


def selects(service: Json, pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    selector = _selector(service)
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def slice_content(service: Json, pods: list[Json]) -> Json:
    """Endpoints and ports; pods without an address yet are left out."""
    addressed = [pod for pod in pods if (pod.get("status") or {}).get("podIP")]
    endpoints = [_endpoint(pod) for pod in sorted(addressed, key=lambda pod: str(pod["metadata"]["name"]))]
    ports = [_port(port, addressed) for port in (service.get("spec") or {}).get("ports") or ()]
    return {"endpoints": endpoints[:MAX_ENDPOINTS], "ports": [port for port in ports if port is not None]}


def _endpoint(pod: Json) -> Json:
    metadata = pod["metadata"]
    serving, terminating = ownership.ready(pod), bool(metadata.get("deletionTimestamp"))
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": serving and not terminating, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _port(port: Json, pods: list[Json]) -> Json | None:
    """The port in the pods; a name is looked up in the first pod that has it. None while no pod has."""
    target = port.get("targetPort") or port["port"]
    number = target if isinstance(target, int) else next(iter(_named(target, pods)), None)
    if number is None:
        return None
    return {"name": port.get("name") or "", "port": number, "protocol": port.get("protocol") or "TCP"}


def _named(name: str, pods: list[Json]) -> list[int]:
    containers = [container for pod in pods for container in pod["spec"].get("containers") or ()]
    ports = [port for container in containers for port in container.get("ports") or ()]
    return [int(port["containerPort"]) for port in ports if port.get("name") == name]


def _new(service: Json) -> Json:
    metadata = service["metadata"]
    owner = {
        "apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    labels = {
        "kubernetes.io/service-name": metadata["name"],
        "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
    }
    meta = {
        "name": metadata["name"], "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [owner],
    }  # fmt: skip
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4"}
