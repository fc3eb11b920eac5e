"""Reads lines of files in reverse order with bounded memory (spec 02 §9.2).

A file is read backwards in blocks that begin at multiples of `block`. The part before a block's first newline is
buffered and joined with the previous blocks, so a line may be longer than a block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from koordlet.audit.logfile import CURRENT, rotated_files

BLOCK_BYTES = 4096
MAX_LINE_BYTES = 2 << 20
"""A longer line is returned as b"", which bounds memory; no event is that long."""


def reversed_lines(
    read: Callable[[int, int], bytes], size: int, *, block: int = BLOCK_BYTES, limit: int = MAX_LINE_BYTES
) -> Iterator[bytes]:
    """The lines of the first `size` bytes in reverse order, without newlines; `read(count, offset)` returns bytes.

    A last line without a newline counts as a line. If the file was truncated meanwhile, the remaining lines are
    returned.
    """
    parts: list[bytes] = []  # of the incomplete line, last part first
    buffered = 0
    end = size
    is_last_line = True
    while end > 0:
        start = (end - 1) // block * block
        pieces = read(end - start, start).split(b"\n")
        end = start
        for index, piece in enumerate(reversed(pieces)):
            if index:  # a newline before the buffered part: the line is complete
                line = b"".join(reversed(parts)) if buffered <= limit else b""
                if not is_last_line or line or buffered:
                    yield line
                parts = []
                buffered = 0
                is_last_line = False
            if buffered + len(piece) <= limit:
                parts.append(piece)
            else:
                parts = []
            buffered += len(piece)
    if not is_last_line or buffered:
        yield b"".join(reversed(parts)) if buffered <= limit else b""


class ReverseLog:
    """Iterates over the lines of an audit log as it was at construction, newest first; it has one open descriptor.

    The current file is opened first, so it may be renamed meanwhile. Rotated files are opened one after another; their
    names are never used twice, so no line is repeated. Deleted files are skipped.
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
        """Close the open file; the iterator continues with the next one."""
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
