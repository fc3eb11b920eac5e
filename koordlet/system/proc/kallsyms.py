"""Addresses of functions of the running kernel: `/proc/kallsyms` (proc(5)).

Needs CAP_SYSLOG or a permissive `kernel.kptr_restrict`; without them the kernel shows zeros, which count as unknown.
Reading takes about 40 ms, so it is done once per process.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def function_ranges(proc: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Name -> [begin, end) of the functions with a known address; the end is the next higher address of a symbol. Empty
    when the file cannot be read."""
    try:
        text = (proc / "kallsyms").read_bytes()
    except OSError:
        return {}
    ranges = {}
    for name in names:
        at = text.find(f" {name}\n".encode())
        if at < 0:
            continue
        begin = int(text[text.rfind(b"\n", 0, at) + 1 : at].split()[0], 16)
        end = begin
        for line in text[text.index(b"\n", at) + 1 : at + 4096].splitlines():
            fields = line.split()
            if len(fields) >= 3 and int(fields[0], 16) > begin:
                end = int(fields[0], 16)
                break
        if begin and end > begin:
            ranges[name] = (begin, end)
    return ranges
