"""Pods that a hook told of before the kubelet shows them: a newborn's settings are decided with everybody else's.

A newborn goes when the kubelet shows the pod, when its sandbox stopped, or after LIFETIME without a word of it; at
most LIMIT are kept, the oldest make room. Memory only: after a restart the kubelet is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koordlet.app.logging import get_logger
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

LIFETIME = 300.0
"""Seconds; a kubelet that shows no pod for so long has not got it (or is away, and so are its pods' changes)."""
LIMIT = 1024


class Newborns:
    """`known` are the pods that the kubelet shows, by UID; `root` is the directory of all pods; `clock` counts
    seconds."""

    def __init__(
        self,
        known: Callable[[], Mapping[str, PodMeta]],
        root: Callable[[], str],
        clock: Callable[[], float],
        *,
        lifetime: float = LIFETIME,
        limit: int = LIMIT,
    ) -> None:
        self._known, self._root, self._clock = known, root, clock
        self._lifetime, self._limit = lifetime, limit
        self._pods: dict[str, tuple[float, PodView]] = {}
        """By UID, the one heard of longest ago first."""

    def placed(self, pod: PodView) -> bool:
        """Whether settings can follow the pod: it has a UID and a directory among the kubelet's."""
        return bool(pod.meta.uid) and pod.meta.cgroup_dir.startswith(f"{self._root()}/")

    def add(self, pod: PodView) -> bool:
        """A hook told of it. Whether that is news: neither kubelet nor an earlier hook did."""
        uid = pod.meta.uid
        if not self.placed(pod) or uid in self._known():
            return False
        before = self._pods.pop(uid, None)
        self._pods[uid] = (self._clock(), pod)
        if len(self._pods) > self._limit:
            oldest = next(iter(self._pods))
            del self._pods[oldest]
            log.once("newborns", "too many pods that the kubelet does not show", limit=self._limit, dropped=oldest)
        return before is None or before[1] != pod

    def best(self, pod: PodView) -> PodView:
        """The pod as the kubelet shows it, else as a hook told of it."""
        known = self._known().get(pod.meta.uid)
        return pod if known is None else PodView.of(known, None, None)

    def directory(self, uid: str) -> str:
        """The pod's, for a runtime that did not say; empty when nobody knows it."""
        known = self._known().get(uid)
        if known is not None:
            return known.cgroup_dir
        return self._pods[uid][1].meta.cgroup_dir if uid in self._pods else ""

    def forget(self, uid: str) -> None:
        """Its sandbox stopped."""
        self._pods.pop(uid, None)

    def shown(self) -> tuple[PodView, ...]:
        """Those to add to a picture made of what the kubelet shows."""
        now, known = self._clock(), self._known()
        for uid, (heard, _) in list(self._pods.items()):
            if uid in known or now - heard > self._lifetime:
                del self._pods[uid]
        return tuple(pod for _, pod in self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)
