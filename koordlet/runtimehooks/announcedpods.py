"""Pods that a hook reported before the kubelet lists them: their settings are decided together with those of all pods.

An announced pod is dropped when the kubelet lists it, when its sandbox stops, or `LIFETIME_S` after its last hook call.
At most `MAX_PODS` are kept; beyond that the oldest is dropped. In memory only: after a restart the kubelet is read
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koordlet.app.logging import get_logger
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

LIFETIME_S = 300.0
"""A kubelet that does not list a pod for this long does not have it (or is down, and does not change pods)."""
MAX_PODS = 1024


class AnnouncedPods:
    """`listed`: the pods that the kubelet lists, by UID; `root`: the directory of all pods; `clock` counts seconds."""

    def __init__(
        self,
        listed: Callable[[], Mapping[str, PodMeta]],
        root: Callable[[], str],
        clock: Callable[[], float],
        *,
        max_pods: int = MAX_PODS,
    ) -> None:
        self._listed = listed
        self._root = root
        self._clock = clock
        self._max_pods = max_pods
        self._pods: dict[str, tuple[float, PodView]] = {}
        """UID -> (time of the last call, pod); the oldest call first."""

    def has_directory(self, pod: PodView) -> bool:
        """Whether the pod can have settings: it has a UID and a directory below that of the kubelet's pods."""
        return bool(pod.meta.uid) and pod.meta.cgroup_dir.startswith(f"{self._root()}/")

    def add(self, pod: PodView) -> bool:
        """Record a hook call about the pod. Returns whether the pod is new or changed."""
        uid = pod.meta.uid
        if not self.has_directory(pod) or uid in self._listed():
            return False
        before = self._pods.pop(uid, None)
        self._pods[uid] = (self._clock(), pod)
        if len(self._pods) > self._max_pods:
            oldest = next(iter(self._pods))
            del self._pods[oldest]
            log.once("announced", "Too many announced pods", limit=self._max_pods, dropped=oldest)
        return before is None or before[1] != pod

    def latest(self, pod: PodView) -> PodView:
        """The pod as the kubelet lists it, else as given."""
        listed = self._listed().get(pod.meta.uid)
        return pod if listed is None else PodView.of(listed, None, None)

    def directory(self, uid: str) -> str:
        """The pod's directory, for a runtime that does not report it; empty for an unknown pod."""
        listed = self._listed().get(uid)
        if listed is not None:
            return listed.cgroup_dir
        return self._pods[uid][1].meta.cgroup_dir if uid in self._pods else ""

    def remove(self, uid: str) -> None:
        """The sandbox of the pod stopped."""
        self._pods.pop(uid, None)

    def current(self) -> tuple[PodView, ...]:
        """The pods to add to those that the kubelet lists."""
        now = self._clock()
        listed = self._listed()
        for uid, (called_at, _) in list(self._pods.items()):
            if uid in listed or now - called_at > LIFETIME_S:
                del self._pods[uid]
        return tuple(pod for _, pod in self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)
