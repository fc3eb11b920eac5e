"""A small service in a pod, and its client: latencies of requests of about a millisecond of work.

The client is that of the co-location demo (`tests/scale/colocation/client.py`): an open loop, so a slow answer delays
no request. Both sides run as processes of this machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "scale/colocation/client.py"
RATE = 50.0
"""Requests per second."""
SERVICE = """
import hashlib, os, socket, struct, time
work = bytes(1 << 19)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind({path!r})
server.listen(1)
while True:
    client, _ = server.accept()
    try:
        while client.recv(1):
            began, cpu = time.perf_counter(), time.thread_time()
            hashlib.sha256(work).digest()
            client.send(struct.pack("ddd", began, time.perf_counter(), time.thread_time() - cpu))
    except OSError:
        continue
"""


@dataclass(frozen=True)
class Latencies:
    """Of a measurement, in milliseconds."""

    median: float
    p99: float
    requests: int


def service_code(socket_path: Path) -> str:
    """The program of the service's container."""
    return SERVICE.format(path=str(socket_path))


async def measure(socket_path: Path, seconds: float) -> Latencies:
    """The latencies of requests for some seconds. Raises RuntimeError if the client fails."""
    command = (sys.executable, "-S", str(CLIENT), str(socket_path), "c", str(RATE), str(seconds))
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, problem = await client.communicate()
    if client.returncode != 0:
        raise RuntimeError(f"the client of the service failed: {problem.decode(errors='replace')[-500:]}")
    latencies = sorted(1000 * (answered - due) for due, _, _, _, _, answered in json.loads(out))
    if not latencies:
        raise RuntimeError("the client of the service got no answer")
    last = len(latencies) - 1
    return Latencies(latencies[last // 2], latencies[min(len(latencies) * 99 // 100, last)], len(latencies))
