"""The objects of an informer by key, with indexes that are kept by the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
IndexFn = Callable[[T], Iterable[str]]


class Store(Generic[T]):
    """A dict of objects plus value -> keys maps.

    What an object was filed under is remembered, so that it is found again for removal even if somebody changed
    the object in between. All methods are synchronous: within one loop every reader sees whole states.
    """

    def __init__(self, indexes: Mapping[str, IndexFn[T]] | None = None) -> None:
        self._objects: dict[str, T] = {}
        self._functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._functions}
        self._filed: dict[str, dict[str, tuple[str, ...]]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def keys(self) -> list[str]:
        return list(self._objects)

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def list(self) -> list[T]:
        return list(self._objects.values())

    def by_index(self, name: str, value: str) -> Sequence[T]:
        """The objects filed under `value`, in order of arrival. KeyError for an unknown index."""
        return [self._objects[key] for key in self._indexes[name].get(value, ())]

    def put(self, key: str, obj: T) -> T | None:
        """File `obj`; what stood there before. When an index function raises, nothing has changed."""
        filed = {name: tuple(fn(obj)) for name, fn in self._functions.items()}
        old = self._objects.get(key)
        self._unfile(key)
        self._objects[key] = obj
        self._filed[key] = filed
        for name, values in filed.items():
            for value in values:
                self._indexes[name].setdefault(value, {})[key] = None
        return old

    def pop(self, key: str) -> T | None:
        """Remove; what stood there."""
        self._unfile(key)
        return self._objects.pop(key, None)

    def _unfile(self, key: str) -> None:
        for name, values in self._filed.pop(key, {}).items():
            index = self._indexes[name]
            for value in values:
                keys = index.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del index[value]
