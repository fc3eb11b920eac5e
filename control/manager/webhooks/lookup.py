"""Looks up one object by name, in the cache and then at the API server.

Admission handles pods whose namespace or PriorityClass was just created and is not in the cache yet. A cache miss costs
one GET; an unreachable API server is logged and counts as not found.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from control.manager.context import ManagerContext
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound
from koordlet.kube.decode import KubeObject

log = get_logger(__name__)
T = TypeVar("T", bound=KubeObject)


class Lookup(Generic[T]):
    """Objects of one cluster-scoped kind. They are shared with the cache and must not be modified."""

    def __init__(self, context: ManagerContext, kind: type[T]) -> None:
        self._client = context.client
        self._kind = kind
        self._cache = context.caches.informer(kind)

    async def get(self, name: str) -> T | None:
        """The object, or None when it does not exist or cannot be read."""
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        try:
            return await self._client.get(self._kind, name)
        except NotFound:
            return None
        except KubeError as error:
            log.warning("Cannot read an object for admission", kind=self._kind.__name__, name=name, err=error)
            return None
