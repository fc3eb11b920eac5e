"""InterPodAffinity: pods are kept near to or away from pods that they, or existing pods, select (spec 05 §4)."""

from control.scheduler.plugins.interpodaffinity.plugin import InterPodAffinity

__all__ = ["InterPodAffinity"]
