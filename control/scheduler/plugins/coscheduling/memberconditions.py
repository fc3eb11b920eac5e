"""Writes the condition PodScheduled of members that were not tried, in the background (spec 05 §9.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from control.scheduler.framework.handle import Handle
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube import KubeError, NotFound, PatchKind

log = get_logger(__name__)

GATE = "GangPendingPodsConditionPatch"
TYPE, REASON = "PodScheduled", "Unschedulable"


def message(nodes: int, failed: str, post_filter: str) -> str:
    return f"0/{nodes} nodes are available: {failed}. {post_filter}"


def needed(pod: Pod, text: str) -> bool:
    """Whether the pod's condition differs from `text`."""
    condition = pod.status.condition(TYPE)
    return condition is None or (condition.status, condition.reason, condition.message) != ("False", REASON, text)


def patch(text: str, at: float) -> dict[str, Any]:
    """A strategic merge patch of `status`; conditions merge by type."""
    condition = {
        "type": TYPE,
        "status": "False",
        "reason": REASON,
        "message": text,
        "lastTransitionTime": str(Time.from_unix(at)),
    }
    return {"status": {"conditions": [condition]}}


class MemberConditions:
    """Sends the patches. A failure is logged and not retried: the member's own attempt writes the condition again."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, pods: Sequence[Pod], failed: str, post_filter: str) -> None:
        """Write the condition of each pod, unless the feature gate is off or the condition is equal already."""
        gates = self._handle.gates
        if gates is None or gates.enabled(GATE):
            text = message(self._handle.table.nodes_alive, failed, post_filter)
            self._start([(pod, text) for pod in pods if needed(pod, text)])

    def correct(self, texts: Sequence[tuple[Pod, str]]) -> None:
        """Write a new message into the conditions of pods that had failed."""
        failed = [(pod, text, pod.status.condition(TYPE)) for pod, text in texts]
        self._start(
            [
                (pod, text)
                for pod, text, known in failed
                if known is not None and known.reason == REASON and needed(pod, text)
            ]
        )

    def _start(self, texts: Sequence[tuple[Pod, str]]) -> None:
        if texts and self._handle.client is not None:
            task = asyncio.get_running_loop().create_task(self._send(texts))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        await end_tasks(*self._tasks)

    async def _send(self, texts: Sequence[tuple[Pod, str]]) -> None:
        client = self._handle.client
        assert client is not None
        for pod, text in texts:
            meta, body = pod.metadata, patch(text, self._handle.clock.now())
            try:
                await client.patch(
                    Pod, meta.name, meta.namespace, body=body, kind=PatchKind.STRATEGIC, subresource="status"
                )
            except NotFound:
                continue
            except KubeError as failure:
                log.warning("Failed to write the condition of a gang member", pod=meta.key, err=failure)
