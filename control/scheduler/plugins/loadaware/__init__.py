"""LoadAwareScheduling: nodes that are, or are about to be, busy take no more pods and score low (spec 05 §8)."""

from control.scheduler.plugins.loadaware.plugin import LoadAwareScheduling

__all__ = ["LoadAwareScheduling"]
