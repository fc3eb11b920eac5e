"""The objects of an informer by key, with indexes that the store maintains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
IndexFn = Callable[[T], Iterable[str]]


class InformerStore(Generic[T]):
    """A dict of objects plus value -> keys maps.

    The index values of each object are stored, so that its index entries are found for removal even if the object was
    modified. All methods are synchronous: readers in the same loop see consistent states.
    """

    def __init__(self, indexes: Mapping[str, IndexFn[T]] | None = None) -> None:
        self._objects: dict[str, T] = {}
        self._functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._functions}
        self._index_values: dict[str, dict[str, tuple[str, ...]]] = {}

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
        """The objects with this index value, in order of insertion. KeyError for an unknown index."""
        return [self._objects[key] for key in self._indexes[name].get(value, ())]

    def put(self, key: str, obj: T) -> T | None:
        """Store `obj`; returns the object it replaces. If an index function raises, nothing changes."""
        values_by_index = {name: tuple(fn(obj)) for name, fn in self._functions.items()}
        old = self._objects.get(key)
        self._unindex(key)
        self._objects[key] = obj
        self._index_values[key] = values_by_index
        for name, values in values_by_index.items():
            for value in values:
                self._indexes[name].setdefault(value, {})[key] = None
        return old

    def pop(self, key: str) -> T | None:
        """Remove and return the object."""
        self._unindex(key)
        return self._objects.pop(key, None)

    def _unindex(self, key: str) -> None:
        for name, values in self._index_values.pop(key, {}).items():
            index = self._indexes[name]
            for value in values:
                keys = index.get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del index[value]
