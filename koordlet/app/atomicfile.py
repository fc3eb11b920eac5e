"""Replacing a file as a whole: readers, and the next start after a crash, see the old or the new content.

The content is written to `NAME.tmp` in the same directory, which then replaces the file (rename(2)). A process that is
killed before the rename leaves `NAME.tmp`; the next write removes it. One writer per file at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"


def write(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by a file with this content. Parameters and errors as `replacing`."""
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write; it replaces `path` at the end of the block, unless the block raises. The directory must exist.

    `mode` is set whatever the umask. `durable`: fsync before the rename, so that a power failure leaves the old or the
    new content and not an empty file; without it only other processes and a crash of this one are covered. Raises
    OSError (for example a full disk) and then leaves the old file in place.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
