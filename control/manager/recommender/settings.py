"""RecommenderSettings of the recommender: its flags as one value, its annotations and update modes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from control.manager.options import ManagerOptions
from koordlet.api.crs.analysis import Recommendation

GATE: Final = "Recommender"
ANNOTATION_MODE: Final = "analysis.koordinator.sh/update-mode"
ANNOTATION_APPLIED: Final = "analysis.koordinator.sh/applied"
"""Annotation of a pod: the Recommendation that was applied to it at admission."""
MIB: Final = 1 << 20


class Mode(StrEnum):
    """How a recommendation is applied; it is always written to the status."""

    OFF = "Off"
    """not applied"""
    INITIAL = "Initial"
    """applied to new pods"""
    AUTO = "Auto"
    """applied to new pods; pods with requests out of bounds are evicted so that their replacements get it"""


def mode_of(recommendation: Recommendation) -> Mode | None:
    """The value of the annotation, `Off` without one; None for an invalid value."""
    text = recommendation.metadata.annotations.get(ANNOTATION_MODE, Mode.OFF)
    return Mode(text) if text in set(Mode) else None


@dataclass(frozen=True, slots=True)
class RecommenderSettings:
    """Units: shares from 0 to 1, times in seconds, CPU in cores, memory in bytes."""

    interval: float = 60.0
    cpu_share: float = 0.95
    memory_share: float = 0.98
    margin: float = 0.10
    cpu_half_life: float = 12 * 3600.0
    memory_half_life: float = 24 * 3600.0
    minimum_history: float = 24 * 3600.0
    status_interval: float = 600.0
    cpu_floor: float = 0.025
    memory_floor: float = 10.0 * MIB
    eviction_share: float = 0.5
    eviction_minimum_replicas: int = 2
    eviction_minimum_age: float = 600.0

    @classmethod
    def of(cls, options: ManagerOptions) -> RecommenderSettings:
        """From the command line."""
        return cls(
            interval=options.recommender_sample_interval,
            cpu_share=options.recommender_cpu_percentile,
            memory_share=options.recommender_memory_percentile,
            margin=options.recommender_safety_margin_percent / 100,
            cpu_half_life=options.recommender_cpu_half_life,
            memory_half_life=options.recommender_memory_half_life,
            minimum_history=options.recommender_minimum_history,
            status_interval=options.recommender_status_interval,
            eviction_share=options.recommender_eviction_share,
            eviction_minimum_replicas=options.recommender_eviction_minimum_replicas,
            eviction_minimum_age=options.recommender_eviction_minimum_age,
        )
