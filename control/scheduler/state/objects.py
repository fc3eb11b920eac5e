"""Caches of cluster objects: one informer per kind, created at first use, all started together.

Objects are transformed (spec 05 §1.6) and reduced to what the scheduler reads before they enter a store: 100,000 pods
must fit in memory beside the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from control.scheduler.state.nodeimages import ImageNode, ImagePool
from control.scheduler.state.resizing import ResizablePod, with_effective_requests
from control.scheduler.state.transform import transform_device, transform_node, transform_pod, transform_quota
from control.slim import slimmed
from koordlet.api.core import Container, Node, Pod
from koordlet.api.core.pod import PodStatus
from koordlet.api.crs.device import Device
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, Informer

DECODED: Final[dict[type[Any], type[Any]]] = {Node: ImageNode, Pod: ResizablePod}
"""Kinds that are decoded as a type with more fields. They are trimmed before they enter a store."""
LIVING_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"


class ClusterObjects:
    """The `Objects` of a running scheduler. A service for `Runner`."""

    def __init__(self, client: Client, gates: FeatureGates) -> None:
        self.name = "informers"
        self._client = client
        self._started = False
        self._informers: dict[type[Any], Informer[Any]] = {}
        images = ImagePool()
        self._trim: dict[type[Any], Callable[[Any], Any]] = {
            Pod: lambda pod: trim_pod(transform_pod(with_effective_requests(pod), gates)),
            Node: lambda node: slimmed(images.trim(transform_node(node))),
            Device: lambda device: slimmed(transform_device(device)),
            ElasticQuota: lambda quota: slimmed(transform_quota(quota)),
        }

    def __iter__(self) -> Iterator[tuple[type[Any], Informer[Any]]]:
        return iter(self._informers.items())

    def informer(self, kind: type[Any]) -> Informer[Any]:
        """The informer of a kind. Raises RuntimeError for a new kind once they are started."""
        informer = self._informers.get(kind)
        if informer is None:
            if self._started:
                raise RuntimeError(f"informer for {kind.__name__} requested after the start")
            informer = self._informers[kind] = Informer(
                self._client,
                DECODED.get(kind, kind),
                resource=kind,
                field_selector=LIVING_PODS if kind is Pod else None,
                trim=self._trim.get(kind, slimmed),
            )
        return informer

    async def start(self) -> None:
        self._started = True
        for informer in self._informers.values():
            await informer.start()

    async def synced(self) -> None:
        """Wait until every store is complete and every handler has processed it."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers.values()))

    def late(self) -> list[str]:
        """The stores that are not complete, with the reason."""
        incomplete = [informer for informer in self._informers.values() if not informer.synced.is_set()]
        return [f"{informer.name}: {informer.problem}" for informer in incomplete]

    async def stop(self) -> None:
        for informer in self._informers.values():
            await informer.stop()


def trim_pod(pod: Pod) -> Pod:
    """Drop the parts of a pod that no plugin reads: commands, environment, mounts, container statuses."""
    spec, status = pod.spec, pod.status
    spec.containers = [_trim_container(container) for container in spec.containers]
    spec.init_containers = [_trim_container(container) for container in spec.init_containers]
    spec.service_account_name = spec.hostname = ""
    pod.metadata.generate_name = ""
    conditions = status.conditions
    for condition in conditions:
        condition.last_probe_time = None
        if condition.type != "PodScheduled" or spec.node_name:
            condition.message = ""
    kept = PodStatus(
        phase=status.phase,
        conditions=conditions,
        nominated_node_name=status.nominated_node_name,
        start_time=status.start_time,
        qos_class=status.qos_class,
    )
    trimmed = Pod(metadata=pod.metadata, spec=spec, status=kept)
    slimmed(trimmed)
    return trimmed


def _trim_container(container: Container) -> Container:
    return msgspec.structs.replace(
        container, command=[], args=[], env=[], volume_mounts=[], volume_devices=[], working_dir=""
    )
