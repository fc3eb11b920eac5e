"""Which controllers and webhooks there are: a line each. `process` runs those that flags and gates select."""

from __future__ import annotations

from collections.abc import Callable

from control.manager.context import Context
from control.manager.controller import Controller
from control.manager.nodemetric import NodeMetricController
from control.manager.nodeslo import NodeSLOController
from control.manager.webhook.admission import Handler

CONTROLLERS: dict[str, Callable[[Context], Controller]] = {
    "nodemetric": NodeMetricController,
    "nodeslo": NodeSLOController,
}
"""Name (as in --controllers) -> constructor."""

WEBHOOKS: list[tuple[Callable[[Context], Handler], str]] = []
"""(constructor, gate) of every handler; a handler whose gate is off is not built."""
