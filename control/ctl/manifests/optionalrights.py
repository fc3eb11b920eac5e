"""The rights that components need only with a feature: data for the chart, docs/security.md and `koordctl migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control.ctl.manifests import koordlet
from control.descheduler.process import manifests as descheduler
from control.descheduler.process.rights import FEATURES
from control.manager import manifests as manager
from control.manager.rights import FEATURES as MANAGER_FEATURES
from control.manifestfiles import OptionalRights
from control.scheduler.process import manifests as scheduler

RIGHTS: Final[tuple[tuple[str, str, Sequence[OptionalRights]], ...]] = (
    ("koordlet", koordlet.ACCOUNT, koordlet.RIGHTS),
    ("manager", manager.ACCOUNT, MANAGER_FEATURES),
    ("scheduler", scheduler.ACCOUNT, scheduler.RIGHTS),
    ("descheduler", descheduler.ACCOUNT, FEATURES),
)
"""(prefix of the folder in deploy/ and of the chart's value, account, rights)"""
ROLE_NAMES: Final = tuple(f"{account}-{each.name}" for _, account, rights in RIGHTS for each in rights)
