"""Lines of files, last line first, with bounded memory (spec 02 §9.2).

A file is read backwards in blocks that begin at multiples of `block`; what precedes a block's first newline is kept and
joined with the blocks before it, so a line may be longer than a block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from koordlet.audit.logfile import CURRENT, rotated_files

BLOCK = 4096
MAX_LINE = 2 << 20
"""A longer line is given as b"": no event is that long, and memory is bounded."""


def reversed_lines(
    read: Callable[[int, int], bytes], size: int, *, block: int = BLOCK, limit: int = MAX_LINE
) -> Iterator[bytes]:
    """The lines of the first `size` bytes in reverse order, without newlines; `read(count, offset)` gives bytes.

    A last line without a newline counts as a line; a file that became shorter meanwhile gives what is left of it.
    """
    parts: list[bytes] = []  # of the line whose begin was not found yet, last part first
    held, at, newest = 0, size, True
    while at > 0:
        start = (at - 1) // block * block
        pieces = read(at - start, start).split(b"\n")
        at = start
        for index, piece in enumerate(reversed(pieces)):
            if index:  # a newline before what is held: the line is complete
                line = b"".join(reversed(parts)) if held <= limit else b""
                if not newest or line or held:
                    yield line
                parts, held, newest = [], 0, False
            if held + len(piece) <= limit:
                parts.append(piece)
            else:
                parts = []
            held += len(piece)
    if not newest or held:
        yield b"".join(reversed(parts)) if held <= limit else b""


class ReverseLog:
    """All lines of an audit log as it was at construction, newest first; an iterator that holds one descriptor.

    The current file stays open from the start, so it may be renamed meanwhile; files put aside are opened when their
    turn comes, under names that are never given twice, so no line is repeated. A deleted file is passed over.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names = rotated_files(directory)
        self._fd = self._open(CURRENT)
        self._lines = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            line = next(self._lines, None)
            if line is not None:
                return line
            self.close()
            if not self._names:
                raise StopIteration
            self._fd = self._open(self._names.pop(0))
            self._lines = self._read()

    def close(self) -> None:
        """Let go of the open file; the iterator goes on with the next one."""
        self._lines = iter(())
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, name: str) -> int | None:
        try:
            return os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    def _read(self) -> Iterator[bytes]:
        fd = self._fd
        if fd is None:
            return iter(())
        return reversed_lines(lambda count, offset: os.pread(fd, count, offset), os.fstat(fd).st_size)
