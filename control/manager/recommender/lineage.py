"""The controllers that own pods, from caches of ReplicaSets and Jobs that hold only their owner references.

Admission handles pods of ReplicaSets that were just created and are not cached yet; `fetched` then reads the ReplicaSet
from the API server, once per pod. If the API server is unreachable, that is logged and the owner stays unknown.
"""

from __future__ import annotations

from control.manager.context import ManagerContext
from control.manager.recommender.targets import INTERMEDIATE, WorkloadOwner, controller, owners
from koordlet.api.core import Job, ReplicaSet
from koordlet.api.meta import ObjectMeta, OwnerReference
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

_KINDS: dict[str, type[ReplicaSet] | type[Job]] = {"ReplicaSet": ReplicaSet, "Job": Job}


class Lineage:
    """Looks up owners. Constructed on every replica before the caches start."""

    def __init__(self, context: ManagerContext) -> None:
        self._client = context.client
        self._caches = {kind: context.caches.informer(struct) for kind, struct in _KINDS.items()}

    def of(self, namespace: str, meta: ObjectMeta) -> tuple[WorkloadOwner, ...]:
        """The controllers that own a pod, the nearest first, as far as they are cached."""
        return owners(namespace, meta, self._cached)

    async def fetched(self, namespace: str, meta: ObjectMeta) -> tuple[WorkloadOwner, ...]:
        """Like `of`, but reads an uncached controller from the API server."""
        reference = controller(meta)
        if reference is None or reference.kind not in INTERMEDIATE or self._cached(namespace, reference) is not None:
            return self.of(namespace, meta)
        try:
            fetched = (await self._client.get(_KINDS[reference.kind], reference.name, namespace)).metadata
        except NotFound:
            return self.of(namespace, meta)
        except KubeError as error:
            log.warning("Cannot read the controller of a pod", kind=reference.kind, name=reference.name, err=error)
            return self.of(namespace, meta)
        return owners(namespace, meta, lambda _, requested: fetched if requested is reference else None)

    def _cached(self, namespace: str, reference: OwnerReference) -> ObjectMeta | None:
        cache = self._caches.get(reference.kind)
        cached = cache.get(f"{namespace}/{reference.name}") if cache is not None else None
        return cached.metadata if cached is not None and cached.metadata.uid == reference.uid else None
