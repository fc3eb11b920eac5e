"""Pods as subjects: their conditions and nominations are written into the status (spec 05 §3.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from control.scheduler.state.pods import PodInfo
from control.scheduler.state.subjects import FailedAttempt
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, KubeError, NotFound, PatchKind

log = get_logger(__name__)


class PodSubject:
    """`get(key)`: the last known version of a pod, by `namespace/name`."""

    def __init__(self, client: Client, clock: Clock, get: Callable[[str], Pod | None]) -> None:
        self._client = client
        self._clock = clock
        self._get = get

    def current(self, info: PodInfo) -> Pod | None:
        return self._get(info.key)

    def event_object(self, info: PodInfo) -> Pod:
        return info.pod

    async def report(self, info: PodInfo, failed: FailedAttempt) -> None:
        pod = self.current(info)
        if pod is None or pod.spec.node_name:
            return
        status = self._changes(pod, info.expected or pod.status.nominated_node_name, failed)
        if status:
            await self._patch(pod, status)
            info.expected = ""

    async def expect(self, info: PodInfo, node: str) -> None:
        """Write the node of a pod whose binding takes time. A failure is logged."""
        pod = self.current(info)
        if pod is None or pod.spec.node_name or pod.status.nominated_node_name == node:
            return
        info.expected = node  # before the call, which may take effect although its result is lost
        try:
            await self._patch(pod, {"nominatedNodeName": node})
        except NotFound:
            return
        except KubeError as error:
            log.warning("Cannot nominate a pod to the node of its binding", pod=info.key, node=node, err=error)

    async def _patch(self, pod: Pod, status: Mapping[str, Any]) -> None:
        meta = pod.metadata
        await self._client.patch(
            Pod,
            meta.name,
            meta.namespace,
            body={"metadata": {"uid": meta.uid}, "status": status},
            kind=PatchKind.STRATEGIC,
            subresource="status",
        )

    def _changes(self, pod: Pod, nominated: str, failed: FailedAttempt) -> dict[str, Any]:
        """The changes of the status; {} if it is the same already. `nominated`: the node in it."""
        status: dict[str, Any] = {}
        known = pod.status.condition("PodScheduled")
        generation = pod.metadata.generation
        present = (known.status, known.reason, known.message, known.observed_generation) if known is not None else None
        if present != ("False", failed.reason, failed.message, generation):
            now = str(Time.of(datetime.fromtimestamp(self._clock.now(), UTC)))
            changed = now if known is None or known.status != "False" else str(known.last_transition_time or now)
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    **({"observedGeneration": generation} if generation else {}),
                    "status": "False",
                    "reason": failed.reason,
                    "message": failed.message,
                    "lastTransitionTime": changed,
                    "lastProbeTime": None,
                }
            ]
        if failed.nominated is not None and failed.nominated != nominated:
            status["nominatedNodeName"] = failed.nominated or None
        return status
