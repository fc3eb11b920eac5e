"""The controllers above pods, from caches of ReplicaSets and Jobs that keep who controls them and nothing else.

Admission is asked about pods of a ReplicaSet that was made a moment ago: `fetched` then asks the API server, once a
pod. The API server being away is a miss, and logged.
"""

from __future__ import annotations

from control.manager.context import Context
from control.manager.recommender.groups import BETWEEN, Owner, controller, owners
from koordlet.api.core import Job, ReplicaSet
from koordlet.api.meta import ObjectMeta, OwnerReference
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound

log = get_logger(__name__)

_KINDS: dict[str, type[ReplicaSet] | type[Job]] = {"ReplicaSet": ReplicaSet, "Job": Job}


class Lineage:
    """Made before the caches start, on every replica."""

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._caches = {kind: context.caches.informer(type_) for kind, type_ in _KINDS.items()}

    def of(self, namespace: str, meta: ObjectMeta) -> tuple[Owner, ...]:
        """The controllers above a pod, the nearest first, as far as the caches know."""
        return owners(namespace, meta, self._cached)

    async def fetched(self, namespace: str, meta: ObjectMeta) -> tuple[Owner, ...]:
        """The same, asking the API server for what the caches lack."""
        reference = controller(meta)
        if reference is None or reference.kind not in BETWEEN or self._cached(namespace, reference) is not None:
            return self.of(namespace, meta)
        try:
            found = (await self._client.get(_KINDS[reference.kind], reference.name, namespace)).metadata
        except NotFound:
            return self.of(namespace, meta)
        except KubeError as error:
            log.warning("Cannot read a controller of a pod", kind=reference.kind, name=reference.name, err=error)
            return self.of(namespace, meta)
        return owners(namespace, meta, lambda _, asked: found if asked is reference else None)

    def _cached(self, namespace: str, reference: OwnerReference) -> ObjectMeta | None:
        cache = self._caches.get(reference.kind)
        found = cache.get(f"{namespace}/{reference.name}") if cache is not None else None
        return found.metadata if found is not None and found.metadata.uid == reference.uid else None
