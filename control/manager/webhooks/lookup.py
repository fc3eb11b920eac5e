"""One object by name: from the cache, else from the API server.

Admission is asked about pods in namespaces, and under PriorityClasses, that were made a moment ago and that no watch
has told of yet. A miss costs one GET; the API server being away is a miss as well, and logged.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from control.manager.context import Context
from koordlet.app.logging import get_logger
from koordlet.kube import KubeError, NotFound
from koordlet.kube.decode import Object

log = get_logger(__name__)
T = TypeVar("T", bound=Object)


class Lookup(Generic[T]):
    """Objects of one cluster-scoped kind, shared with the cache: don't change them."""

    def __init__(self, context: Context, kind: type[T]) -> None:
        self._client, self._kind = context.client, kind
        self._cache = context.caches.informer(kind)

    async def get(self, name: str) -> T | None:
        """The object, or None when it does not exist or can't be read."""
        found = self._cache.get(name)
        if found is not None:
            return found
        try:
            return await self._client.get(self._kind, name)
        except NotFound:
            return None
        except KubeError as error:
            log.warning("Cannot read an object for admission", kind=self._kind.__name__, name=name, err=error)
            return None
