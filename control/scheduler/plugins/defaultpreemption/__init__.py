"""DefaultPreemption: makes room for a pod by deleting pods of lower priority (spec 05 §3.6)."""

from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption

__all__ = ["DefaultPreemption"]
