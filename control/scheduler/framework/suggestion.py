"""Advice to the owner of a pod that does not fit: part of its message and of the diagnosis (spec 05 §7.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SuggestionType(StrEnum):
    """What would help a pod that does not fit (spec 05 §7.2)."""

    EVICT_SELF = "EvictWorkloadSelf"
    WAIT_FOR_VICTIMS = "WaitingVictimReleased"
    DELETE_CLAIM = "DeleteConflictPVC"


@dataclass(frozen=True)
class Suggestion:
    """A plugin's advice to the owner of a pod that does not fit."""

    type: SuggestionType
    message: str

    @property
    def text(self) -> str:
        return f"Suggestion: {{type: {self.type}, message: {self.message}}}"


def waiting_for_victims(node: str = "") -> Suggestion:
    """The room of pods that are being removed is not free yet. `node`: where the pod is nominated."""
    where = f" on node {node}" if node else ""
    return Suggestion(SuggestionType.WAIT_FOR_VICTIMS, f"wait until the removed pods{where} are gone")
