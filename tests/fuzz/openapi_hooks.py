"""Hooks of schemathesis for `tests.fuzz.api_by_openapi`: no watches, which do not end."""

from __future__ import annotations

from typing import Any

import schemathesis


def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """The query without `watch`."""
    return query and {name: value for name, value in query.items() if name != "watch"}


schemathesis.hook(map_query)
