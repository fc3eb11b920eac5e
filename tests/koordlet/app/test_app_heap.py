"""Freed blocks leave the process, also after larger ones were freed before."""

import subprocess
import sys

from koordlet.app.heap import clean_mappings

PRELUDE = """
from koordlet.app.heap import bound_heap, trim_heap
import ctypes, os
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def block(size):
    at = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(at, 1, size)
    return ctypes.c_void_p(at)
"""
PROGRAM = """
assert bound_heap() or BOUND == 0
libc.free(block(24 << 20))  # would raise glibc's threshold to 24 MiB
begin = resident()
pairs = [(block(1 << 20), block(64)) for _ in range(16)]  # the small ones hold the heap's end
for large, _ in pairs:
    libc.free(large)
print(resident() - begin)
"""


def left(bound: bool) -> int:
    """Bytes still resident after 16 MiB were freed."""
    program = PROGRAM.replace("BOUND", str(int(bound)))
    if not bound:
        program = program.replace("bound_heap() or", "")
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_blocks_leave() -> None:
    assert left(bound=True) < 2 << 20
    assert left(bound=False) > 8 << 20  # what it is good for


def test_free_pages_return_to_the_kernel() -> None:
    program = """
blocks = [block(64 << 10) for _ in range(512)]
for one in blocks[::2]:  # the others hold their neighbours' places
    libc.free(one)
before = resident()
assert trim_heap()
print(before - resident())
"""
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 12 << 20


def mapping(where: str, rights: str, file: str, anonymous: int) -> list[str]:
    return [f"{where} {rights} 00001000 fe:00 {file}\n", "Rss:  64 kB\n", f"Anonymous:  {anonymous} kB\n"]


def test_only_pages_that_are_as_in_their_file_are_let_go() -> None:
    smaps = [
        *mapping("1000-4000", "r-xp", "77   /usr/bin/python3", 0),
        *mapping("5000-6000", "r--p", "77   /usr/lib/a library.so (deleted)", 0),
        *mapping("6000-7000", "r--p", "77   /usr/lib/relocated.so", 4),
        *mapping("7000-8000", "rw-p", "77   /usr/lib/data.so", 0),
        *mapping("8000-9000", "r--s", "77   /shared", 0),
        *mapping("9000-a000", "r--p", "0    ", 0),
        *mapping("a000-b000", "r-xp", "0    [vdso]", 0),
        *mapping("b000-c000", "rw-s", "1038 anon_inode:bpf-map", 0),
    ]
    assert list(clean_mappings(smaps)) == [(0x1000, 0x3000), (0x5000, 0x1000)]


def test_file_pages_that_only_the_start_needed_are_let_go() -> None:
    program = """
import numpy
from koordlet.app.heap import unmap_files
def of_files():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssFile")).split()[1]) << 10
before = of_files()
assert unmap_files() >= before // 4
print(before - of_files())
assert numpy.sort(numpy.arange(1000)[::-1])[7] == 7
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 2 << 20


def test_a_settled_heap_is_not_looked_at_again() -> None:
    program = """
import gc
from koordlet.app.heap import freeze_heap
kept = [[] for _ in range(1000)]
before = gc.get_freeze_count()
freeze_heap()
assert gc.get_freeze_count() >= before + 1000
assert gc.get_freeze_count() > len(gc.get_objects())
"""
    subprocess.run([sys.executable, "-c", PRELUDE + program], check=True, timeout=60)


def test_a_settled_heap_grows_without_full_collections_until_it_is_settled_again() -> None:
    program = """
import gc, weakref
from koordlet.app.heap import freeze_heap
class Ring:
    def __init__(self): self.me = self
full = []
gc.callbacks.append(lambda phase, info: full.append(1) if phase == "stop" and info["generation"] == 2 else None)
freeze_heap()
kept = Ring()
gone = weakref.ref(kept)
freeze_heap()
del kept
full.clear()
more = [[] for _ in range(400_000)]
assert not full
assert gone() is not None
freeze_heap()
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", PRELUDE + program], check=True, timeout=60)
