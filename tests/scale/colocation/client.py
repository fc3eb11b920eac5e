"""`python client.py SOCKET OP RATE SECONDS`: the service's client, open loop: a slow answer holds up no request.

Requests are due at times drawn from a Poisson process (a fixed seed: every run has the same ones); a latency is counted
from when a request was due. Latencies in seconds go to stdout as JSON. Imports nothing of ours.
"""

from __future__ import annotations

import gc
import json
import random
import select
import socket
import sys
import time
from collections import deque

WARM_SECONDS = 0.5
"""Requests of the beginning that are made and not counted."""
AT_ONCE = 64
"""Requests that the socket holds; further ones wait here, and their time counts all the same."""
PATIENCE = 4.0
"""The run is given up after that many times its length."""


def due_times(rate: float, seconds: float) -> list[float]:
    rng, at, found = random.Random(7), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds + WARM_SECONDS:
        found.append(at)
    return found


def main() -> None:
    path, op, rate, seconds = sys.argv[1], sys.argv[2].encode(), float(sys.argv[3]), float(sys.argv[4])
    gc.disable()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    todo, asked = deque(due_times(rate, seconds)), deque[float]()
    latencies: list[float] = []
    began = time.perf_counter()
    end = PATIENCE * (seconds + WARM_SECONDS)
    while (todo or asked) and (now := time.perf_counter() - began) < end:
        while todo and todo[0] <= now and len(asked) < AT_ONCE:
            asked.append(todo.popleft())
            sock.send(op)
        left = max(todo[0] - now, 0.0) if todo and len(asked) < AT_ONCE else 1.0
        if select.select([sock], [], [], left)[0]:
            sock.recv(1)
            due = asked.popleft()
            if due >= WARM_SECONDS:
                latencies.append(time.perf_counter() - began - due)
    now = time.perf_counter() - began
    latencies += [now - due for due in (*asked, *todo) if due >= WARM_SECONDS]  # not answered: at least that long
    json.dump(latencies, sys.stdout)


if __name__ == "__main__":
    main()
