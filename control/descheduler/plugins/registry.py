"""All plugins of the descheduler, by name. A configuration may enable these, and no others."""

from __future__ import annotations

from typing import Final

from control.descheduler.framework.plugin import DeschedulerPlugin
from control.descheduler.migration.plugin import MigrationController
from control.descheduler.plugins.custompriority.plugin import CustomPriority
from control.descheduler.plugins.defaultevictor.plugin import DefaultEvictor
from control.descheduler.plugins.fragmentationaware import FragmentationAware
from control.descheduler.plugins.interferenceaware.plugin import InterferenceMoves
from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from control.descheduler.plugins.scaledownbinpack import ScaleDownBinPack
from control.descheduler.plugins.upstream.table import UPSTREAM

KINDS: Final[tuple[type[DeschedulerPlugin], ...]] = (
    CustomPriority,
    DefaultEvictor,
    FragmentationAware,
    InterferenceMoves,
    LowNodeLoad,
    MigrationController,
    ScaleDownBinPack,
    *UPSTREAM,
)
PLUGINS: Final[dict[str, type[DeschedulerPlugin]]] = {kind.name: kind for kind in KINDS}
