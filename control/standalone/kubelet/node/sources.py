"""Pods of this node and the Node itself, followed through `koordlet.kube`'s informers, as plain objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta
from koordlet.kube.client import Client
from koordlet.kube.informer import Informer


class PodSourceListener(Protocol):
    """Called from the event loop; must not block."""

    def pod_seen(self, raw: Mapping[str, Any]) -> None: ...

    def pod_gone(self, uid: str) -> None: ...

    def node_seen(self, raw: Mapping[str, Any]) -> None: ...


class PodSource(Protocol):
    synced: asyncio.Event
    """Set once all pods there are have been told."""

    async def start(self, listener: PodSourceListener) -> None: ...

    async def stop(self) -> None: ...


class RawObject(Struct):
    """An object of which the informer needs the metadata and we all the rest, well-formed or not."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Any = None
    status: Any = None

    def raw(self) -> dict[str, Any]:
        return {"metadata": wire.to_builtins(self.metadata), "spec": self.spec, "status": self.status or {}}


class InformerSource:
    def __init__(self, client: Client, node: str) -> None:
        self._pods = Informer(
            client, RawObject, resource=Pod, field_selector={"spec.nodeName": node}, name="kubelet-pods"
        )
        self._nodes = Informer(
            client, RawObject, resource=Node, field_selector={"metadata.name": node}, name="kubelet-node"
        )
        self.synced = self._pods.synced

    @property
    def problem(self) -> str | None:
        """Why pods are not being followed just now; None when they are."""
        return self._pods.problem

    async def start(self, listener: PodSourceListener) -> None:
        self._pods.add_handler(
            on_add=lambda pod: listener.pod_seen(pod.raw()),
            on_update=lambda old, new: listener.pod_seen(new.raw()),
            on_delete=lambda pod: listener.pod_gone(pod.metadata.uid),
        )
        self._nodes.add_handler(
            on_add=lambda node: listener.node_seen(node.raw()),
            on_update=lambda old, new: listener.node_seen(new.raw()),
        )
        await self._nodes.start()
        await self._pods.start()

    async def stop(self) -> None:
        await self._pods.stop()
        await self._nodes.stop()


class ClientCaller:
    """`api.Caller` over a `koordlet.kube.Client`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        # Patches here set named fields and deletes name the uid: doing one twice is the same as once.
        repeatable = method != "POST" or path.endswith("reviews")
        data = await self._client.raw(method, path, body=body, content_type=content_type, repeatable=repeatable)
        answer: dict[str, Any] = msgspec.json.decode(data)
        return answer
