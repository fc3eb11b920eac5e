"""Makes the kernel sum up memory figures over the CPUs before a BPF program reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final


class MemoryStatFile:
    """`memory.stat` of a hierarchy's root, open until `close`. Raises OSError where there is none."""

    NAME: Final = "memory.stat"

    def __init__(self, root: Path | str) -> None:
        self._descriptor = os.open(Path(root, self.NAME), os.O_RDONLY | os.O_CLOEXEC)

    def flush(self) -> None:
        """Reading one byte makes the kernel sum up its counters, under the condition under which it would do so for
        any file below."""
        os.pread(self._descriptor, 1, 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
