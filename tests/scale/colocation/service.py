"""A small latency-sensitive service: one thread, one request at a time, as `python service.py SOCKET PAGES DISK`.

A request is one byte: `c` computes for about a millisecond, `m` reads some pages of a mapped file (PAGES) and computes
a little, `d` reads 4 KiB of DISK with O_DIRECT, `w` reads every page of PAGES, `n` does nothing. The response has begin
and end of the work and its CPU time. Runs in the pod's container; imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import mmap
import os
import random
import socket
import struct
import sys
import time

PAGE = 4096
PAGES_A_REQUEST = 16
COMPUTE, LITTLE = bytes(1 << 20), bytes(1 << 17)
ANSWER = struct.Struct("ddd")
"""Begin and end (monotonic), CPU seconds."""


def main() -> None:
    path, pages, disk = sys.argv[1:]
    gc.disable()
    rng = random.Random(1)
    file = os.open(pages, os.O_RDONLY)
    size = os.lseek(file, 0, os.SEEK_END) // PAGE
    mapped = mmap.mmap(file, size * PAGE, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    blocks = os.open(disk, os.O_RDONLY | os.O_DIRECT)
    count = os.lseek(blocks, 0, os.SEEK_END) // PAGE
    area = mmap.mmap(-1, PAGE)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen(1)
    while True:
        client, _ = server.accept()
        while request := receive(client):
            began, cpu = time.perf_counter(), time.thread_time()
            if request == b"c":
                hashlib.sha256(COMPUTE).digest()
            elif request == b"m":
                for _ in range(PAGES_A_REQUEST):
                    mapped[rng.randrange(size) * PAGE]
                hashlib.sha256(LITTLE).digest()
            elif request == b"w":  # warm up: every page once
                for at in range(0, size * PAGE, PAGE):
                    mapped[at]
            elif request == b"d":
                os.preadv(blocks, [area], rng.randrange(count) * PAGE)
            with contextlib.suppress(OSError):  # the client has disconnected; accept the next one
                client.send(ANSWER.pack(began, time.perf_counter(), time.thread_time() - cpu))


def receive(client: socket.socket) -> bytes:
    """Empties a group at the end, also after an error."""
    try:
        return client.recv(1)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
