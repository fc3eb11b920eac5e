"""Coscheduling: gangs of pods that are placed together or not at all (spec 05 §9)."""

from control.scheduler.plugins.coscheduling.plugin import Coscheduling

__all__ = ["Coscheduling"]
