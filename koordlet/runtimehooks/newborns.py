"""Pods that a hook told of before the kubelet shows them: a newborn's settings are decided with everybody else's.

A newborn goes when the kubelet shows the pod, when its sandbox stopped, or after LIFETIME without a word of it; at
most LIMIT are kept, the oldest make room. Memory only: after a restart the kubelet is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from koordlet.app.logging import get_logger
from koordlet.qosmanager.view import PodView

log = get_logger(__name__)

LIFETIME = 300.0
"""Seconds; a kubelet that shows no pod for so long has not got it (or is away, and so are its pods' changes)."""
LIMIT = 1024


class Newborns:
    """See the module. `clock` in seconds, of any epoch."""

    def __init__(self, clock: Callable[[], float], *, lifetime: float = LIFETIME, limit: int = LIMIT) -> None:
        self._clock, self._lifetime, self._limit = clock, lifetime, limit
        self._pods: dict[str, tuple[float, PodView]] = {}
        """By UID, the one heard of longest ago first."""

    def add(self, pod: PodView) -> None:
        """A hook told of it (again)."""
        uid = pod.meta.uid
        self._pods.pop(uid, None)
        self._pods[uid] = (self._clock(), pod)
        if len(self._pods) > self._limit:
            oldest = next(iter(self._pods))
            del self._pods[oldest]
            log.once("newborns", "too many pods that the kubelet does not show", limit=self._limit, dropped=oldest)

    def forget(self, uid: str) -> None:
        """Its sandbox stopped."""
        self._pods.pop(uid, None)

    def shown(self, known: Container[str]) -> tuple[PodView, ...]:
        """Those to add to a picture in which the UIDs `known` are already."""
        now = self._clock()
        for uid, (heard, _) in list(self._pods.items()):
            if uid in known or now - heard > self._lifetime:
                del self._pods[uid]
        return tuple(pod for _, pod in self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)
