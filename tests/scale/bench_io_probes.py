"""Cost of block_io and net_stall: nanoseconds per run of each program, and the time to read their tables.

Run: `python tests/scale/bench_io_probes.py [--rounds 5]`, as root. Every round makes direct reads of 4 KiB from a loop
device, and small TCP messages over loopback, while the kernel times every program (bpf stats, whose cost is included).
The lower quartile of the rounds counts: other work empties caches and can only increase it.
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from koordlet.probes.blockio import probe as blockio
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.probes.netstall import probe as netstall
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from koordlet.system.roots import Roots
from tests.koordlet.probes.bpfstats import timed_programs
from tests.scale.bench_probes import ns_per_run, quartile
from tests.scale.figures import Figure, report

REQUESTS, MESSAGES, SIZE = 3000, 5000, 4096


def read_disk(path: str) -> None:
    """REQUESTS direct reads, sequentially."""
    buffer = mmap.mmap(-1, SIZE)
    disk = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for number in range(REQUESTS):
        os.preadv(disk, [buffer], number * SIZE)
    os.close(disk)


def talk() -> None:
    """MESSAGES round trips over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            for _ in range(MESSAGES):
                client.sendall(b"x")
                peer.recv(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    host = Host(Roots.host())
    place = ProbeEnvironment(host, possible_cpus(host.roots), None)
    disks, nets = blockio.load_core(place), netstall.load_core(place)
    runs: dict[str, list[float]] = defaultdict(list)
    reads: dict[str, list[float]] = defaultdict(list)
    with tempfile.NamedTemporaryFile() as backing:
        backing.truncate(REQUESTS * SIZE)
        completed = subprocess.run(
            ["losetup", "-f", "--show", backing.name], check=True, capture_output=True, text=True
        )
        disk = completed.stdout.strip()
        try:
            for _ in range(options.rounds):
                before = [*disks.programs(), *nets.programs()]
                with timed_programs():
                    read_disk(disk)
                    talk()
                for name, ns in ns_per_run(before, [*disks.programs(), *nets.programs()]).items():
                    runs[name].append(ns)
                for name, source in (("block_io", disks), ("net_stall", nets)):
                    began = time.perf_counter()
                    source.read()
                    reads[name].append((time.perf_counter() - began) * 1e3)
        finally:
            subprocess.run(["losetup", "-d", disk], check=True)
    disks.close(keep=False)
    nets.close(keep=False)
    figures = [Figure(f"{name}_run", quartile(values), "ns") for name, values in sorted(runs.items())]
    figures += [Figure(f"{name}_read", quartile(values), "ms") for name, values in reads.items()]
    return report("io_probes", figures)


if __name__ == "__main__":
    sys.exit(main())
