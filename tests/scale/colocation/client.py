"""`python client.py SOCKET OP RATE SECONDS`: the service's client, an open loop: a slow response delays no request.

Due times are drawn from a Poisson process with a fixed seed (the same in every run); a latency counts from a request's
due time. Each request's times go to stdout as JSON, see `requests.Request`. Imports nothing of this project.
"""

from __future__ import annotations

import gc
import json
import random
import select
import socket
import struct
import sys
import time
from collections import deque

WARM_SECONDS = 0.5
"""Requests at the beginning that are not counted."""
AT_ONCE = 64
"""Requests in the socket; further ones wait here, and their time counts as well."""
PATIENCE = 2.0
"""The run is aborted after that many times its length."""
ANSWER = struct.Struct("ddd")
"""From the service: begin and end of the work, and its CPU seconds."""


def due_times(rate: float, seconds: float) -> list[float]:
    rng, at, dues = random.Random(7), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds + WARM_SECONDS:
        dues.append(at)
    return dues


def main() -> None:
    path, op, rate, seconds = sys.argv[1], sys.argv[2].encode(), float(sys.argv[3]), float(sys.argv[4])
    gc.disable()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(path)
    times = due_times(rate, seconds)
    began = time.perf_counter()
    todo, pending = deque(began + at for at in times), deque[tuple[float, float]]()
    requests: list[tuple[float, ...]] = []
    counted, end = began + WARM_SECONDS, began + PATIENCE * (seconds + WARM_SECONDS)
    while (todo or pending) and (now := time.perf_counter()) < end:
        while todo and todo[0] <= now and len(pending) < AT_ONCE:
            pending.append((todo.popleft(), time.perf_counter()))
            sock.send(op)
        left = max(todo[0] - now, 0.0) if todo and len(pending) < AT_ONCE else 1.0
        if select.select([sock], [], [], left)[0]:
            answer = ANSWER.unpack(sock.recv(ANSWER.size))
            requests.append((*pending.popleft(), *answer, time.perf_counter()))
    now = time.perf_counter()  # without a response: takes at least until now
    requests += [(due, sent, now, now, 0.0, now) for due, sent in (*pending, *((due, now) for due in todo))]
    json.dump([request for request in requests if request[0] >= counted], sys.stdout)


if __name__ == "__main__":
    main()
