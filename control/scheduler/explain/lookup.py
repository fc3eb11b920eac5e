"""Finds the pods that a user's question names, and explains a single pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from control.scheduler.explain.podreport import explain
from control.scheduler.framework.profile import Framework
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.queue import SchedulingQueue
from control.scheduler.state.cache import Cache
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.names import LABEL_QUESTIONED_OBJECT_KEY
from koordlet.api.pages.placement import PodPlacement


class PodLookup:
    """Pods of this scheduler, queued or counted on a node."""

    def __init__(
        self,
        frameworks: Mapping[str, Framework],
        queue: SchedulingQueue,
        cache: Cache,
        current: Callable[[str], Pod | None],
    ) -> None:
        """`frameworks` by profile; `current`: `namespace/name` -> the last known version of a pod."""
        self._frameworks = frameworks
        self._queue = queue
        self._cache = cache
        self._current = current

    def explain(self, namespace: str, pod: str) -> PodPlacement:
        """Where the pod is or would be placed, and why. Raises LookupError for a pod that is not scheduled here."""
        key = f"{namespace}/{pod}"
        info, state = self._queue.pending(key), "placed"
        queued = self._queue.record(info.uid) if info is not None else None
        if queued is not None:
            state = "gated" if queued.gated_by else queued.place.value
        else:
            info = self._known(key)
        framework = self._frameworks.get(info.shape.scheduler) if info is not None else None
        if info is None or framework is None:
            raise LookupError(f"no pod {key} is scheduled here")
        report = explain(framework, info, "assumed" if info.assumed else state)
        if queued is not None:
            report.gated_by = queued.gated_by
            report.rejected_by = sorted(queued.rejected_by)
        return report

    def find(self, key: str) -> tuple[Framework, list[PodInfo]] | None:
        """The profile and pods that the key of a ScheduleExplanation names: a pod, a gang, a gang group, or a job."""
        keys = [key]
        for framework in self._frameworks.values():
            plugin = framework.plugins.get(Coscheduling.name)
            if isinstance(plugin, Coscheduling):
                keys += plugin.members(key)
        pods = [info for pod_key in dict.fromkeys(keys) if (info := self._known(pod_key)) is not None]
        if not pods:  # a job: its pods carry its key in a label
            pods = [pod for pod in self._queue.pods() if pod.shape.labels.get(LABEL_QUESTIONED_OBJECT_KEY) == key]
        framework_of = self._frameworks.get(pods[0].shape.scheduler) if pods else None
        return None if framework_of is None else (framework_of, pods)

    def _known(self, key: str) -> PodInfo | None:
        """A pod that is queued or counted, by `namespace/name`."""
        pod = self._current(key)
        if pod is None:
            return None
        queued = self._queue.record(pod.metadata.uid)
        return queued.pod if queued is not None else self._cache.pods.get(pod.metadata.uid)
