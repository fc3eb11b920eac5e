"""Child processes of a benchmark, each serving a unix socket."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import listens


@contextlib.contextmanager
def serving(program: str, *arguments: str, at: Path) -> Iterator[Path]:
    """Run `program` in this Python until the end of the block, which begins once a process listens at `at`. Raises
    SystemExit when the process ends before that."""
    with subprocess.Popen([sys.executable, program, *arguments]) as process:
        try:
            while not listens(at):
                if process.poll() is not None:
                    raise SystemExit(f"{program} {' '.join(arguments)} ended")
                time.sleep(0.02)
            yield at
        finally:
            process.terminate()
