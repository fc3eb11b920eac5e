"""The result of `koordctl migrate check` for each part of an installation of Koordinator."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["same", "differs", "action"]
"""It works unchanged; it works differently; something must be done before or after the take-over."""


class MigrationItem(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One checked thing."""

    area: str
    subject: str
    outcome: Outcome
    detail: str = ""
    todo: str = ""


class MigrationReport(msgspec.Struct, rename="camel"):
    """Output of `-o json`."""

    items: list[MigrationItem]

    def count(self, outcome: Outcome) -> int:
        """How many items have this outcome."""
        return sum(item.outcome == outcome for item in self.items)
