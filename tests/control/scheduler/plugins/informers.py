"""Informers for tests: they forward the events that a test emits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeInformer:
    """Records its handlers."""

    def __init__(self) -> None:
        self.handlers: list[dict[str, Callable[..., Any]]] = []

    def add_handler(self, **handlers: Callable[..., Any]) -> None:
        self.handlers.append(handlers)


class FakeObjects:
    """`Objects` of a handle."""

    def __init__(self) -> None:
        self.informers: dict[type[Any], FakeInformer] = {}

    def informer(self, kind: type[Any]) -> Any:
        return self.informers.setdefault(kind, FakeInformer())

    def emit(self, action: str, *objects: Any) -> None:
        """`action`: add (new), update (old, new) or delete (old)."""
        for handlers in self.informers[type(objects[-1])].handlers:
            handlers[f"on_{action}"](*objects)
