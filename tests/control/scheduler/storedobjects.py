"""Informers for tests that keep objects and call handlers, like those of a running scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class StoredObjects:
    """One informer per kind, filled by `set` and `delete`."""

    def __init__(self) -> None:
        self.kinds: dict[type[Any], StoredKind] = {}

    def __iter__(self) -> Iterator[tuple[type[Any], StoredKind]]:
        return iter(self.kinds.items())

    def informer(self, kind: type[Any]) -> Any:
        return self.kinds.setdefault(kind, StoredKind())


class StoredKind:
    """The store and the handlers of one kind."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._handlers: list[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = []

    def add_handler(self, on_add: Any, on_update: Any, on_delete: Any) -> None:
        self._handlers.append((on_add, on_update, on_delete))

    def get(self, key: str) -> Any:
        return self._objects.get(key)

    def list(self) -> list[Any]:
        return list(self._objects.values())

    def delete(self, key: str) -> None:
        old = self._objects.pop(key)
        for _, _, delete in self._handlers:
            delete(old)

    def set(self, new: Any) -> None:
        key = new.metadata.key
        old = self._objects.get(key)
        self._objects[key] = new
        for add, update, _ in self._handlers:
            if old is None:
                add(new)
            else:
                update(old, new)
