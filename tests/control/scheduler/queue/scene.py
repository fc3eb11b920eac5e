"""A queue with a manual clock and plugins made of lambdas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from control.scheduler.framework.plugin import EventInterest
from control.scheduler.framework.status import PluginStatus
from control.scheduler.queue import QueueProfile, SchedulingQueue
from control.scheduler.state.pods import PodInfo, Shapes
from tests.control.scheduler.build import pod


class Scene:
    """`queue`, `now` to be set, and pods by name."""

    def __init__(
        self,
        interests: Mapping[str, Sequence[EventInterest]] | None = None,
        gates: Sequence[tuple[str, Callable[[PodInfo], PluginStatus]]] = (),
        **options: Any,
    ) -> None:
        self.now = 100.0
        self.shapes = Shapes()
        self.heard: list[tuple[str, str]] = []
        profile = QueueProfile(lambda p, at: (-p.priority, at), gates, interests or {})
        self.queue = SchedulingQueue(
            {"koord-scheduler": profile},
            lambda: self.now,
            incoming=lambda queue, event: self.heard.append((queue, event)),
            **options,
        )

    def info(self, name: str, **more: Any) -> PodInfo:
        """A pod of this name; the uid is the name's, so that two calls make two versions of one pod."""
        more.setdefault("metadata", {"uid": f"uid-{name}"})
        return self.shapes.info(pod(name, **more))

    def add(self, name: str, **more: Any) -> PodInfo:
        info = self.info(name, **more)
        self.queue.add(info)
        return info

    def failed(self, name: str, *plugins: str, pending: Sequence[str] = (), **more: Any) -> PodInfo:
        """A pod that was added, popped and rejected."""
        pod = self.add(name, **more)
        assert self.queue.pop() is pod
        self.queue.requeue(pod, plugins, pending)
        return pod

    def place(self, pod: PodInfo) -> str:
        record = self.queue.record(pod.uid)
        assert record is not None
        return "gated" if record.gated_by and record.place.value == "unschedulable" else record.place.value

    def names(self) -> list[str]:
        """Pops everything."""
        popped = []
        while (pod := self.queue.pop()) is not None:
            popped.append(pod.name)
        return popped
