"""A registry in memory with the real policies, and helpers to reconcile once or to run a controller."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from control.standalone.admission import AdmissionChain
from control.standalone.controllers.base import EmbeddedController
from control.standalone.kinds import Kinds
from control.standalone.objectmeta import timestamp
from control.standalone.registry import ObjectRegistry, WriteOptions
from control.standalone.schema import KindSchemas
from control.standalone.store import ObjectStore
from tests.present import present

SCHEMAS = KindSchemas()
START = 1_800_000_000.0


class Time:
    """Wall clock of the registry and monotonic clock of the controllers."""

    def __init__(self) -> None:
        self.seconds = START

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: int) -> None:
        self.seconds += seconds


class Cluster:
    """Shorthand methods for a registry."""

    def __init__(self, registry: ObjectRegistry, time: Time) -> None:
        self.registry, self.time = registry, time

    async def create(self, key: str, name: str = "", ns: str = "default", **fields: Any) -> dict[str, Any]:
        kind = self.registry.kinds.get(key)
        metadata = {"name": name, **fields.pop("metadata", {})}
        assert kind is not None
        obj = {"apiVersion": kind.served_as(), "kind": kind.kind, "metadata": metadata, **fields}
        return await self.registry.create(key, ns if kind.namespaced else None, obj)

    def find(self, key: str, name: str, ns: str = "default") -> dict[str, Any] | None:
        return self.registry.find(key, ns if present(self.registry.kinds.get(key)).namespaced else None, name)

    def names(self, key: str, ns: str = "default") -> list[str]:
        return [obj["metadata"]["name"] for obj in self.registry.list(key, ns)]

    async def status(self, key: str, name: str, ns: str = "default", **fields: Any) -> dict[str, Any]:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            obj["status"] = {**(obj.get("status") or {}), **fields}
            return obj

        ns = ns if present(self.registry.kinds.get(key)).namespaced else None  # type: ignore[assignment]
        return await self.registry.modify(key, ns, name, change, options=WriteOptions(subresource="status"))

    async def pod(
        self,
        name: str,
        ns: str = "default",
        *,
        ready: bool = False,
        owner: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        metadata = {"labels": labels or {}}
        if owner is not None:
            reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                         "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}  # fmt: skip
            metadata["ownerReferences"] = [reference]  # type: ignore[assignment]
        containers = spec.pop("containers", [{"name": "c", "image": "i"}])
        await self.create("/pods", name, ns, metadata=metadata, spec={"containers": containers, **spec})
        if ready:
            await self.make_ready(name, ns)
        return self.find("/pods", name, ns)  # type: ignore[return-value]

    async def make_ready(self, name: str, ns: str = "default", ready: bool = True) -> None:
        row = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp(self.time())}
        await self.status("/pods", name, ns, phase="Running", conditions=[row])

    async def finish(self, name: str, phase: str, ns: str = "default") -> None:
        await self.status("/pods", name, ns, phase=phase)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    time = Time()
    store = ObjectStore(None, now=time)
    admission = AdmissionChain(store)
    registry = ObjectRegistry(store, Kinds(), SCHEMAS, admission, now=time)
    cluster = Cluster(registry, time)
    for namespace in ("default", "kube-node-lease"):
        await cluster.create("/namespaces", namespace)
        await cluster.create("/serviceaccounts", "default", namespace)
    yield cluster
    await admission.close()
    store.close()


@pytest.fixture
def running() -> Callable[..., Awaitable[None]]:
    """`await running(controller, until)`: start the controller, wait for a condition, stop it."""

    async def run(controller: EmbeddedController, until: Callable[..., Any], seconds: float = 60.0) -> None:
        await controller.start()
        try:
            async with asyncio.timeout(seconds):
                while not until():  # noqa: ASYNC110 - the store has no event for "anything"
                    await asyncio.sleep(0.01)
        finally:
            await controller.stop()

    return run
