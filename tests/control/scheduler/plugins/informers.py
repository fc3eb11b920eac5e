"""Stand-ins for informers: they hand on what a test tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ToldInformer:
    """Remembers who listens."""

    def __init__(self) -> None:
        self.handlers: list[dict[str, Callable[..., Any]]] = []

    def add_handler(self, **handlers: Callable[..., Any]) -> None:
        self.handlers.append(handlers)


class ToldObjects:
    """`Objects` of a handle."""

    def __init__(self) -> None:
        self.informers: dict[type[Any], ToldInformer] = {}

    def informer(self, kind: type[Any]) -> Any:
        return self.informers.setdefault(kind, ToldInformer())

    def tell(self, what: str, *objects: Any) -> None:
        """`what`: add (new), update (old, new) or delete (old)."""
        for handlers in self.informers[type(objects[-1])].handlers:
            handlers[f"on_{what}"](*objects)
