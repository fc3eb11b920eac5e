"""The caches of a process: one informer per kind, created at first use, all started together.

A subclass or its caller names per kind how objects are decoded, trimmed, selected and indexed (`CachedKind`). Cached
objects are shared and must not be modified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from control.boundedpods import MAX_BYTES, bounded_object
from control.slim import slimmed
from koordlet.api.core import ConfigMap, Pod
from koordlet.api.registry import resource_for
from koordlet.kube import Client, Informer, InformerSettings
from koordlet.kube.decode import KubeObject

T = TypeVar("T", bound=KubeObject)


_BOUNDED_ELSEWHERE: Final = (Pod, ConfigMap)
"""Trimmed by each component; ConfigMaps are those of administrators."""


@dataclass(frozen=True)
class CachedKind:
    """How the objects of one kind are kept."""

    trim: Callable[[Any], Any] = slimmed
    decoded: type[Any] | None = None
    """The type that objects are decoded as; None: the kind itself."""
    field_selector: str | None = None
    indexes: Mapping[str, Callable[[Any], Iterable[str]]] = field(default_factory=dict)
    optional: bool = False
    """See InformerSettings."""
    max_bytes: int = MAX_BYTES
    """Memory of an object that is in a namespace, so that a tenant may have written it; a longer one is refused."""


class InformerSet:
    """See the module text. A service for `Runner`."""

    def __init__(
        self,
        client: Client,
        kinds: Mapping[type[Any], CachedKind],
        *,
        namespace: str | None = None,
        settings: InformerSettings = InformerSettings(),
    ) -> None:
        """`namespace`: the only one whose objects are kept, of namespaced kinds."""
        self.name = "informers"
        self._client = client
        self._kinds = kinds
        self._namespace = namespace
        self._settings = settings
        self._started = False
        self._informers: dict[type[Any], Informer[Any]] = {}

    def __iter__(self) -> Iterator[tuple[type[Any], Informer[Any]]]:
        return iter(self._informers.items())

    def informer(self, kind: type[T]) -> Informer[T]:
        """The informer of a kind. Raises RuntimeError for a new kind once they are started."""
        informer = self._informers.get(kind)
        if informer is None:
            if self._started:
                raise RuntimeError(f"informer for {kind.__name__} requested after the start")
            kept = self._kinds.get(kind, CachedKind())
            informer = self._informers[kind] = Informer(
                self._client,
                kept.decoded or kind,
                self._namespace if resource_for(kind).namespaced else None,
                resource=kind,
                field_selector=kept.field_selector,
                trim=_bounded(kept) if resource_for(kind).namespaced and kind not in _BOUNDED_ELSEWHERE else kept.trim,
                indexes=kept.indexes,
                settings=replace(self._settings, optional=kept.optional),
            )
        return informer

    async def start(self) -> None:
        self._started = True
        for informer in self._informers.values():
            await informer.start()

    async def synced(self) -> None:
        """Wait until every store is complete and every handler has processed it."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers.values()))

    def late(self) -> list[str]:
        """The stores that are not complete, with the reason."""
        incomplete = [informer for informer in self._informers.values() if not informer.synced.is_set()]
        return [f"{informer.name}: {informer.problem}" for informer in incomplete]

    async def stop(self) -> None:
        for informer in self._informers.values():
            await informer.stop()


def _bounded(kept: CachedKind) -> Callable[[Any], Any]:
    return lambda obj: bounded_object(kept.trim(obj), kept.max_bytes)
