"""All plugins of the descheduler, by name. A configuration may enable these, and no others."""

from __future__ import annotations

from typing import Final

from control.descheduler.framework.plugin import DeschedulerPlugin
from control.descheduler.migration.plugin import MigrationController
from control.descheduler.plugins.defaultevictor.plugin import DefaultEvictor
from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad

PLUGINS: Final[dict[str, type[DeschedulerPlugin]]] = {
    kind.name: kind for kind in (DefaultEvictor, LowNodeLoad, MigrationController)
}
