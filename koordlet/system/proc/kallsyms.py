"""Where functions of the running kernel lie: ``/proc/kallsyms`` (proc(5)).

Needs CAP_SYSLOG or a permissive ``kernel.kptr_restrict``; without it the kernel shows zeros, which count as unknown.
Reading takes some 40 ms, so once a process.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def function_ranges(proc: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Name -> [begin, end) of those functions that are known; the end is where the next symbol of another address
    begins. Empty when the file can't be read."""
    try:
        text = (proc / "kallsyms").read_bytes()
    except OSError:
        return {}
    found = {}
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
            found[name] = (begin, end)
    return found
