"""Watches the pods of this node and the Node itself with `koordlet.kube`'s informers, as plain JSON objects."""

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
    """Set after the listener has received all existing pods."""

    async def start(self, listener: PodSourceListener) -> None: ...

    async def stop(self) -> None: ...


class RawObject(Struct):
    """An object with typed metadata, for the informer, and the other fields as they came, valid or not."""

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
        """Why the pods are not being watched at the moment; None when they are."""
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
    """`apirequests.ApiCaller` on a `koordlet.kube.Client`."""

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
        # The kubelet's patches set fields and its deletes name the uid: both may be repeated.
        repeatable = method != "POST" or path.endswith("reviews")
        data = await self._client.raw(method, path, body=body, content_type=content_type, repeatable=repeatable)
        decoded: dict[str, Any] = msgspec.json.decode(data)
        return decoded
