"""LoadAwareScheduling: rejects nodes whose measured or estimated usage is above a threshold, and scores the others by
it (spec 05 §8)."""

from control.scheduler.plugins.loadaware.plugin import LoadAwareScheduling

__all__ = ["LoadAwareScheduling"]
