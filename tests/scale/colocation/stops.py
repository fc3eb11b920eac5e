"""`python stops.py CPU`: when did that CPU run nothing at all? Prints `ready`; at SIGTERM [[begin, end], ...] as JSON.

Sleeps a moment again and again, with a priority that nothing else on the machine has. A wake-up that is much too late
means that the CPU stood still: the hypervisor gave it to somebody else, or the kernel was busy where it can't be
interrupted. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

PERIOD = 0.002
LIMIT = 0.01
"""Seconds of delay that count: more than twice the time between two ticks."""
PRIORITY = 50


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    going, stops = [True], []
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    print("ready", flush=True)
    last = time.perf_counter()
    while going:
        time.sleep(PERIOD)
        now = time.perf_counter()
        if now - last > PERIOD + LIMIT:
            stops.append((last + PERIOD, now))
        last = now
    json.dump(stops, sys.stdout)


if __name__ == "__main__":
    main()
