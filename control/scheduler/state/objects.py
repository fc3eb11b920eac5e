"""Typed copies of cluster objects: one informer a kind, made when a plugin first asks, started together.

What enters a store has been through the transformers (spec 05 §1.6) and is cut down to what schedulers read: a
cluster's 100,000 pods must fit beside the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from control.scheduler.state.nodeimages import ImageNode, ImagePool
from control.scheduler.state.transform import transform_device, transform_node, transform_pod, transform_quota
from control.slim import slimmed
from koordlet.api.core import Container, Node, Pod
from koordlet.api.core.pod import PodStatus
from koordlet.api.crs.device import Device
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.gates import FeatureGates
from koordlet.kube import Client, Informer

LIVING_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"


class StoreObjects:
    """The `Objects` of a running scheduler. A service for `Runner`."""

    def __init__(self, client: Client, gates: FeatureGates) -> None:
        self.name = "informers"
        self._client = client
        self._started = False
        self._informers: dict[type[Any], Informer[Any]] = {}
        images = ImagePool()
        self._shape: dict[type[Any], Callable[[Any], Any]] = {
            Pod: lambda pod: trim_pod(transform_pod(pod, gates)),
            Node: lambda node: slimmed(images.trim(transform_node(node))),
            Device: lambda device: slimmed(transform_device(device)),
            ElasticQuota: lambda quota: slimmed(transform_quota(quota)),
        }

    def __iter__(self) -> Iterator[tuple[type[Any], Informer[Any]]]:
        return iter(self._informers.items())

    def informer(self, kind: type[Any]) -> Informer[Any]:
        """The informer of a kind. Raises RuntimeError for a new kind once they are started."""
        found = self._informers.get(kind)
        if found is None:
            if self._started:
                raise RuntimeError(f"{kind.__name__} is asked for after the start")
            found = self._informers[kind] = Informer(
                self._client,
                ImageNode if kind is Node else kind,
                resource=kind,
                field_selector=LIVING_PODS if kind is Pod else None,
                trim=self._shape.get(kind, slimmed),
            )
        return found

    async def start(self) -> None:
        self._started = True
        for informer in self._informers.values():
            await informer.start()

    async def synced(self) -> None:
        """Until every store is complete and every handler has seen it."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers.values()))

    def late(self) -> list[str]:
        """Stores that are not complete, and why."""
        return [f"{one.name}: {one.problem}" for one in self._informers.values() if not one.synced.is_set()]

    async def stop(self) -> None:
        for informer in self._informers.values():
            await informer.stop()


def trim_pod(pod: Pod) -> Pod:
    """A pod without what no plugin asks for: commands, environment, mounts, what the kubelet says of containers."""
    spec, status = pod.spec, pod.status
    spec.containers = [_container(one) for one in spec.containers]
    spec.init_containers = [_container(one) for one in spec.init_containers]
    spec.service_account_name = spec.hostname = ""
    pod.metadata.generate_name = ""
    conditions = status.conditions
    for condition in conditions:
        condition.last_probe_time = None
        if condition.type != "PodScheduled" or spec.node_name:
            condition.message = ""
    pod.status = PodStatus(
        phase=status.phase,
        conditions=conditions,
        nominated_node_name=status.nominated_node_name,
        start_time=status.start_time,
        qos_class=status.qos_class,
    )
    slimmed(pod)
    return pod


def _container(one: Container) -> Container:
    return msgspec.structs.replace(
        one, command=[], args=[], env=[], volume_mounts=[], volume_devices=[], working_dir=""
    )
