"""The scheduling queue: which pod is next, and which pods an event may help (spec 05 §3.3).

`SchedulingQueue` is a plain data structure with a clock; `Feed` lets a task wait for it and flushes it in time.
"""

from control.scheduler.queue.feed import Feed
from control.scheduler.queue.interests import QueueProfile
from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.queue.record import Place, Record

__all__ = ["Feed", "Place", "QueueProfile", "Record", "SchedulingQueue"]
