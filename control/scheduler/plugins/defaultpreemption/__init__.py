"""DefaultPreemption: room for a pod by removing less important ones (spec 05 §3.6)."""

from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption

__all__ = ["DefaultPreemption"]
