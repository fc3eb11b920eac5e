"""Claims, classes and slices for tests, and informers over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koordlet.api.core import Pod
from koordlet.api.core.claims import DeviceClass, ResourceClaim, ResourceSlice
from koordlet.api.encoding import wire
from tests.control.scheduler.build import pod

DRIVER = "gpu.example.com"
MODEL = f'device.attributes["{DRIVER}"].model'


def device(name: str, model: str = "A100", memory: str = "40Gi", **more: Any) -> dict[str, Any]:
    attributes = {"model": {"string": model}, "uuid": {"string": f"GPU-{name}"}, "numa": {"int": int(name[-1])}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def slice_of(
    node: str, *devices: dict[str, Any], pool: str = "", name: str = "", version: tuple[int, int] = (1, 1), **where: Any
) -> ResourceSlice:
    """Devices of a node, or with `where` (allNodes, nodeSelector) of several. The pool has the node's name. `version`:
    generation of the pool and number of its slices."""
    place = where or {"nodeName": node}
    generation, count = version
    about = {"name": pool or node, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "pool": about, "devices": list(devices), **place}
    meta = {"name": name or f"{pool or node}-{generation}"}
    return wire.convert({"metadata": meta, "spec": spec}, ResourceSlice)


def device_class(name: str = "gpu", *expressions: str, **more: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": text}} for text in expressions or (f'device.driver == "{DRIVER}"',)]
    return wire.convert({"metadata": {"name": name}, "spec": {"selectors": selectors, **more}}, DeviceClass)


def request(name: str = "r", *expressions: str, cls: str = "gpu", **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"name": name, "exactly": {"deviceClassName": cls, "selectors": selectors, **more}}


def claim(
    name: str = "c", *requests: dict[str, Any], owner: str = "", status: Any = None, **more: Any
) -> ResourceClaim:
    """`owner`: uid of the pod that the claim was made for. `more`: constraints, config."""
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    devices = {"requests": list(requests or (request(),)), **more}
    body = {"metadata": meta, "spec": {"devices": devices}, "status": status or {}}
    return wire.convert(body, ResourceClaim)


def pod_with(*claims: str, name: str = "p", **more: Any) -> Pod:
    """A pod that uses existing claims."""
    used = [{"name": f"n{number}", "resourceClaimName": each} for number, each in enumerate(claims)]
    return pod(name, spec={"resourceClaims": used, **more})


class Store:
    """One informer: `set` and `drop` call the handlers as the watch does."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._handlers: list[tuple[Callable[..., Any], ...]] = []

    def add_handler(self, *handlers: Callable[..., Any]) -> None:
        self._handlers.append(handlers)
        for obj in self.objects.values():
            handlers[0](obj)

    def get(self, key: str) -> Any:
        return self.objects.get(key)

    def list(self) -> list[Any]:
        return list(self.objects.values())

    def set(self, obj: Any) -> None:
        old = self.objects.get(obj.metadata.key)
        self.objects[obj.metadata.key] = obj
        for added, updated, _ in self._handlers:
            if old is None:
                added(obj)
            else:
                updated(old, obj)

    def drop(self, key: str) -> None:
        old = self.objects.pop(key)
        for _, _, deleted in self._handlers:
            deleted(old)


class Objects:
    """`Objects` of a handle."""

    def __init__(self, *objects: Any) -> None:
        self.stores: dict[type, Store] = {}
        self._initial = objects

    def informer(self, kind: type) -> Any:
        if kind not in self.stores:
            store = self.stores[kind] = Store()
            for each in self._initial:
                if isinstance(each, kind):
                    store.set(each)
        store = self.stores[kind]
        return store

    def set(self, obj: Any) -> None:
        self.stores[type(obj)].set(obj)
