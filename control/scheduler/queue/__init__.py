"""The scheduling queue: the order of pods, and the pods that a cluster event may help (spec 05 §3.3).

`SchedulingQueue` is a plain data structure with a clock. `Feed` lets a task wait for pods and runs the periodic
flushes.
"""

from control.scheduler.queue.feed import Feed
from control.scheduler.queue.interests import QueueProfile
from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.queue.record import QueuedPod, QueuePlace

__all__ = ["Feed", "QueuePlace", "QueueProfile", "QueuedPod", "SchedulingQueue"]
