"""Which controllers and webhooks there are: a line each. `process` runs those that flags and gates select."""

from __future__ import annotations

from collections.abc import Callable

from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.webhook.admission import Handler

CONTROLLERS: dict[str, Callable[[Context], Controller]] = {}
"""Name (as in --controllers) -> constructor."""

WEBHOOKS: list[Callable[[Context], Handler]] = []
"""Constructors; each class says its path and its gate."""
