"""`python -m tests.scale.colocation_real.rateclient PORT RATE SECONDS CONNECTIONS REQUEST`: an open loop over TCP.

For services whose Debian clients have no constant rate or no percentiles (Redis, memcached, nginx). REQUEST is in
hexadecimal and is answered with the same number of bytes each time. Due times are those of the other benchmark's client
(Poisson, fixed seed); a latency counts from when the request was due, so that requests that wait for a free connection
are counted as late. Prints the latencies in seconds as JSON.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
import time
from collections import deque
from contextlib import ExitStack

from tests.scale.colocation.client import PATIENCE, WARM_SECONDS, due_times

QUIET_SECONDS = 0.3
"""A first response is complete when nothing arrives for that time."""
CHUNK = 1 << 18


class Connection:
    """One connection: at most one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due = 0.0
        self.missing = 0
        """Bytes of the response that did not arrive yet."""

    def receive(self) -> int:
        arrived = len(self.socket.recv(CHUNK))
        if not arrived:
            raise ConnectionError("the service closed a connection")
        return arrived


def response_size(connection: Connection, request: bytes) -> int:
    """Bytes of the response, from a first request."""
    connection.socket.sendall(request)
    size = connection.receive()
    while select.select([connection.socket], [], [], QUIET_SECONDS)[0]:
        size += connection.receive()
    return size


def measure(port: int, rate: float, seconds: float, connections: int, request: bytes) -> list[float]:
    """Latencies after the warm-up; a request without a response lasts at least until the end."""
    with ExitStack() as stack:
        opened = [Connection(port) for _ in range(connections)]
        for connection in opened:
            stack.enter_context(connection.socket)
        return _measure(opened, due_times(rate, seconds), seconds, request)


def _measure(opened: list[Connection], times: list[float], seconds: float, request: bytes) -> list[float]:
    idle = deque(opened)
    size = response_size(idle[0], request)
    busy: dict[int, Connection] = {}
    latencies: list[float] = []
    began = time.perf_counter()
    counted, end = began + WARM_SECONDS, began + PATIENCE * (seconds + WARM_SECONDS)
    todo = deque(began + at for at in times)
    while (todo or busy) and (now := time.perf_counter()) < end:
        while todo and idle and todo[0] <= now:
            connection = idle.popleft()
            connection.due, connection.missing = todo.popleft(), size
            connection.socket.sendall(request)
            busy[connection.socket.fileno()] = connection
        left = max(todo[0] - now, 0.0) if todo and idle else 1.0
        for number in select.select(list(busy), [], [], left)[0]:
            connection = busy[number]
            connection.missing -= connection.receive()
            if connection.missing <= 0:
                del busy[number]
                idle.append(connection)
                if connection.due >= counted:
                    latencies.append(time.perf_counter() - connection.due)
    now = time.perf_counter()
    unanswered = [connection.due for connection in busy.values()] + [due for due in todo if due < now]
    return latencies + [now - due for due in unanswered if due >= counted]


def main() -> None:
    port, rate, seconds, connections = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    gc.disable()
    json.dump(measure(port, rate, seconds, connections, bytes.fromhex(sys.argv[5])), sys.stdout)


if __name__ == "__main__":
    main()
