"""InterPodAffinity: pods are kept near to, or far from, pods that they or the others name (spec 05 §4)."""

from control.scheduler.plugins.interpodaffinity.plugin import InterPodAffinity

__all__ = ["InterPodAffinity"]
