"""Services that say how they get on, and neighbours that take memory, the disk or the network from them: programs for
`Container.run`, and the network namespaces that the last ones need. Everything is small, and the test's own.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
NODE_ADDRESS, FAR_ADDRESS, POD_GATE, POD_ADDRESS = "10.9.0.1", "10.9.0.2", "10.8.0.1", "10.8.0.2"
PIECE = 700
"""Bytes of a datagram."""
RULES = 1500
"""Packet rules that every packet to the pod is held against, on the CPU that receives it."""
_libc = ctypes.CDLL(None, use_errno=True)


# --- services

_COUNT = """
import mmap, struct
_rounds = mmap.mmap(os.open({path!r}, os.O_RDWR), 8)
_count = 0
def done():
    global _count
    _count += 1
    struct.pack_into("q", _rounds, 0, _count)
"""


@dataclass(frozen=True)
class Rounds:
    """How often a service has got round: a number in a file that it maps."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Rounds:
        path.write_bytes(bytes(8))
        return cls(path)

    def code(self, loop: str) -> str:
        """A program that calls `done` after each round of `loop`."""
        return f"{_COUNT.format(path=str(self.path))}while True:\n{loop} done()\n"

    def read(self) -> float:
        return float(struct.unpack("q", self.path.read_bytes())[0])


def takes_memory(mebibytes: int, rest: float) -> str:
    """Take that much, touch it, give it back, rest."""
    size = mebibytes << 20
    return (
        f" area = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        " area.madvise(mmap.MADV_NOHUGEPAGE)\n"
        f" for at in range(0, {size}, 4096): area[at] = 1\n"
        f" area.close()\n time.sleep({rest})\n"
    )


def reads_blocks(disk: Path, rest: float) -> str:
    """Read 4 KiB somewhere, past the page cache, rest."""
    return (
        f" piece = globals().setdefault('piece', mmap.mmap(-1, 4096))\n"
        f" file = globals().setdefault('file', os.open({str(disk)!r}, os.O_RDONLY | os.O_DIRECT))\n"
        f" os.preadv(file, [piece], _count * 7919 * 4096 % {disk.stat().st_size})\n time.sleep({rest})\n"
    )


COMPUTES = " for _ in range(200_000): pass\n time.sleep(0.001)\n"
"""Hardly ever leaves its CPU."""


# --- neighbours


def writes(path: Path, mebibytes: int) -> str:
    """Write a file over and over through the page cache."""
    return (
        f"fd = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)\npiece = os.urandom(1 << 20)\nwhile True:\n"
        f" os.lseek(fd, 0, 0)\n for _ in range({mebibytes}): os.write(fd, piece)\n"
    )


def reads_all(disk: Path) -> str:
    """Read pieces of 1 MiB past the page cache, without a rest."""
    return (
        f"import mmap, random\nfd = os.open({str(disk)!r}, os.O_RDONLY | os.O_DIRECT)\narea = mmap.mmap(-1, 1 << 20)\n"
        f"while True: os.preadv(fd, [area], random.randrange({disk.stat().st_size} >> 20) << 20)\n"
    )


def sends(network: Network) -> str:
    """From the pod's network to an echo server; the answers are not read."""
    return (
        "import ctypes, socket\n"
        f"assert ctypes.CDLL(None).setns(os.open('/run/netns/{network.pod}', os.O_RDONLY), {CLONE_NEWNET}) == 0\n"
        "out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"out.bind(('{POD_ADDRESS}', 9))\nout.connect(('{FAR_ADDRESS}', 7))\nout.setblocking(False)\n"
        f"piece = bytes({PIECE})\n"
        "while True:\n for _ in range(16):\n  try: out.send(piece)\n  except OSError: pass\n time.sleep(0.0005)\n"
    )


ECHO = (
    "import os, socket, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\n"
    "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nsock.bind(('', 7))\nprint('there', flush=True)\n"
    "while True:\n piece, peer = sock.recvfrom(2048)\n sock.sendto(piece, peer)\n"
)


# --- the network


def run(*command: str, text: str | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text).stdout


@dataclass(frozen=True)
class Network:
    """Names of two network namespaces beside the node's, which is the thread's: a pod's and another machine's."""

    pod: str
    far: str

    def packets(self) -> float:
        """How many went to the pod."""
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        return next(float(line.split()[10]) for line in lines if line.split()[0] == "pod0:")

    def shaped(self) -> str:
        """What the node's interface does to what leaves."""
        return run("tc", "qdisc", "show", "dev", "up0") + run("tc", "class", "show", "dev", "up0")


@contextmanager
def network(victims_cpu: int) -> Iterator[Network]:
    """This thread, and every process and thread that it starts, are on a node of their own: over `up0` and a default
    route it reaches another machine, over `pod0` a pod, whose packets are received on `victims_cpu`."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    network = Network(f"koord-test-{os.getpid()}-pod", f"koord-test-{os.getpid()}-far")
    assert _libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    names: list[str] = []
    try:
        for name in (network.pod, network.far):
            run("ip", "netns", "add", name)
            names.append(name)
        run("ip", "link", "set", "lo", "up")
        for mine, its, name, node, address in (
            ("up0", "up1", network.far, NODE_ADDRESS, FAR_ADDRESS), ("pod0", "eth0", network.pod, POD_GATE, POD_ADDRESS)
        ):  # fmt: skip
            run("ip", "link", "add", mine, "type", "veth", "peer", "name", its, "netns", name)
            run("ip", "addr", "add", f"{node}/24", "dev", mine)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", its)
            run("ip", "link", "set", mine, "up")
            run("ip", "-n", name, "link", "set", its, "up")
            run("ip", "-n", name, "route", "add", "default", "via", node)
        run("ip", "route", "add", "default", "via", FAR_ADDRESS)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        steer = f"echo {1 << victims_cpu:x} > /sys/class/net/eth0/queues/rx-0/rps_cpus"
        run("ip", "netns", "exec", network.pod, "sh", "-c", steer)
        rules = "".join(f"-A INPUT -s 192.0.2.{i % 250} -p udp --dport {i} -j DROP\n" for i in range(1, RULES + 1))
        run("ip", "netns", "exec", network.pod, "iptables-restore", text=f"*filter\n{rules}COMMIT\n")
        yield network
    finally:
        for name in names:
            run("ip", "netns", "del", name)
        assert _libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)


@contextmanager
def echo(far: str, cpu: int, python: str) -> Iterator[None]:
    """The other machine sends back what it gets."""
    command = ["ip", "netns", "exec", far, python, "-S", "-c", ECHO, str(cpu)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.kill()
