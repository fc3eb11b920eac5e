"""Keep memory that is not needed from staying with the process.

glibc raises the size from which it maps blocks apart (and gives them back when freed) each time such a block is freed,
up to 32 MiB; from then on numpy's passing arrays of a megabyte live in the heap and leave holes in it. With both
thresholds set, they stay where they are. Measured on a full node: 120 instead of 145 MB resident, and 5 MB less with
128 KiB than with 256, below which arrays of a few hundred containers are. `bound_heap` is called once at start, before
anything large was allocated. What is smaller leaves holes all the same, of which whole pages can be given back now and
then (`trim_heap`: 1 ms, 4 to 10 MB on a busy full node). Without glibc nothing happens.

Of the interpreter's and the libraries' own files a start touches far more than what works afterwards: `unmap_files`
takes such pages out of the process (8 ms; of 24 MB, 16 are there again in the long run). They stay in the page cache,
unmapped and thus the first that the kernel takes when it is short; what is touched again is mapped without reading.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MMAP_THRESHOLD, TRIM_THRESHOLD = 128 * 1024, 256 * 1024
SETTLE_SECONDS = 3600.0
"""Between two calls of `settle_heap`."""
_NEVER = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MADV_DONTNEED = 4
_OWN_MAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [1-9][0-9]* +/")
"""Of a file, private and not writable."""


def bound_heap() -> bool:
    """Whether the C library took the settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, TRIM_THRESHOLD))
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)


def trim_heap() -> bool:
    """Give back pages that hold nothing; whether there were any."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(ctypes.c_size_t(0)))


def clean_mappings(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(first address, size) of mappings in which every page is as it stands in its file and will stay so."""
    at: tuple[int, int] | None = None
    for line in smaps:
        if found := _MAPPING.match(line):
            first = int(found[1], 16)
            at = first, int(found[2], 16) - first
        elif line.startswith("Anonymous:"):  # what the loader relocated before it took the right to write away
            if at is not None and line.split()[1] == "0":
                yield at
            at = None


def unmap_files() -> int:
    """Let go of file pages until they are touched again; bytes of address space, 0 where the kernel doesn't tell which
    those are."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not _OWN_MAPS.exists():
        return 0
    with _OWN_MAPS.open(errors="replace") as smaps:
        found = list(clean_mappings(smaps))
    return sum(
        size
        for first, size in found
        if madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), ctypes.c_int(_MADV_DONTNEED)) == 0
    )


def settle_heap() -> None:
    """Take what lives now out of the garbage collector's sight, for a process whose large tables have just been filled.

    A full collection looks at every object: 1.5 s for 100,000 cached pods, during which nothing else runs. What is
    replaced later is freed by its reference count as ever; only cycles among what lives now would stay. What comes
    later adds up to as many objects within minutes, so the collector makes no full collections of its own from here on:
    this is to be called again now and then (`SETTLE_SECONDS`), which finds the cycles of that time.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
