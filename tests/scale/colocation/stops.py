"""`python stops.py CPU`: detects spans in which that CPU ran nothing.

Prints `ready`; at SIGTERM [[begin, end], ...] as JSON. Sleeps briefly in a loop with the highest priority. A wake-up
that is much too late means that the CPU was stopped: the hypervisor gave it to another machine, or the kernel was busy
where it cannot be interrupted. Imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

PERIOD = 0.002
LIMIT = 0.01
"""Seconds of delay that count: more than two ticks."""
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
