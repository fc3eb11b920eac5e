"""Ports for servers that are told theirs, and whether one listens at a socket.

The kernel gives out ephemeral ports, to clients as well: one that it gave for a moment may be in use before the
server binds it. Ports below those are only bound by programs that name them.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST, LAST = 20_000, 32_000
"""Above what daemons have by convention, below what the kernel gives out (net.ipv4.ip_local_port_range)."""
_given: set[int] = set()


def free_port() -> int:
    """A free port of 127.0.0.1, which this process returns once."""
    while True:
        port = random.SystemRandom().randrange(FIRST, LAST)
        if port in _given:
            continue
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def listens(path: Path) -> bool:
    """Whether a server accepts connections at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
