"""A registry in memory with the real policies, and helpers to reconcile once or to run a controller."""

import asyncio

import pytest

from control.standalone.admission import AdmissionChain
from control.standalone.kinds import Kinds
from control.standalone.objectmeta import timestamp
from control.standalone.patch import Patches
from control.standalone.registry import ObjectRegistry, WriteOptions
from control.standalone.schema import KindSchemas
from control.standalone.store import ObjectStore

SCHEMAS = KindSchemas()
START = 1_800_000_000.0


class Time:
    """Wall clock of the registry and monotonic clock of the controllers."""

    def __init__(self):
        self.seconds = START

    def __call__(self):
        return self.seconds

    def advance(self, seconds):
        self.seconds += seconds


class Cluster:
    """Shorthand methods for a registry."""

    def __init__(self, registry, time):
        self.registry, self.time = registry, time

    async def create(self, key, name="", ns="default", **fields):
        kind = self.registry.kinds.get(key)
        metadata = {"name": name, **fields.pop("metadata", {})}
        obj = {"apiVersion": kind.served_as(), "kind": kind.kind, "metadata": metadata, **fields}
        return await self.registry.create(key, ns if kind.namespaced else None, obj)

    def find(self, key, name, ns="default"):
        return self.registry.find(key, ns if self.registry.kinds.get(key).namespaced else None, name)

    def names(self, key, ns="default"):
        return [obj["metadata"]["name"] for obj in self.registry.list(key, ns)]

    async def status(self, key, name, ns="default", **fields):
        def change(obj):
            obj["status"] = {**(obj.get("status") or {}), **fields}
            return obj

        ns = ns if self.registry.kinds.get(key).namespaced else None
        return await self.registry.modify(key, ns, name, change, options=WriteOptions(subresource="status"))

    async def pod(self, name, ns="default", *, ready=False, owner=None, labels=None, **spec):
        metadata = {"labels": labels or {}}
        if owner is not None:
            reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                         "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}  # fmt: skip
            metadata["ownerReferences"] = [reference]
        containers = spec.pop("containers", [{"name": "c", "image": "i"}])
        await self.create("/pods", name, ns, metadata=metadata, spec={"containers": containers, **spec})
        if ready:
            await self.make_ready(name, ns)
        return self.find("/pods", name, ns)

    async def make_ready(self, name, ns="default", ready=True):
        row = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp(self.time())}
        await self.status("/pods", name, ns, phase="Running", conditions=[row])

    async def finish(self, name, phase, ns="default"):
        await self.status("/pods", name, ns, phase=phase)


@pytest.fixture
async def cluster():
    time = Time()
    store = ObjectStore(None, now=time)
    registry = ObjectRegistry(store, Kinds(), schemas=SCHEMAS, patcher=Patches(), now=time)
    registry.admission = AdmissionChain(store)
    made = Cluster(registry, time)
    for namespace in ("default", "kube-node-lease"):
        await made.create("/namespaces", namespace)
        await made.create("/serviceaccounts", "default", namespace)
    yield made
    await registry.admission.close()
    store.close()


@pytest.fixture
def running():
    """`await running(controller, until)`: start the controller, wait for a condition, stop it."""

    async def run(controller, until, seconds=60.0):
        await controller.start()
        try:
            async with asyncio.timeout(seconds):
                while not until():  # noqa: ASYNC110 - the store has no event for "anything"
                    await asyncio.sleep(0.01)
        finally:
            await controller.stop()

    return run
