"""The two files through which Terway is told about bandwidth, as settings whose value is their content (spec 03 §4.13).

    terway.global    global_bps_config
    terway.pods      pod.json

Terway watches the directory: a file is replaced as a whole, and the way back is that it is not there.
"""

from __future__ import annotations

import os
from pathlib import Path

from koordlet.app import atomicfile
from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT, read_now
from koordlet.system.write import write_error

GLOBAL, PODS = "terway.global", "terway.pods"
FILES = {GLOBAL: "global_bps_config", PODS: "pod.json"}


class TerwayStore:
    """`directory` is made when the first file is written, readable for all."""

    resources = tuple(FILES)

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def check(self, setting: Setting, value: Value) -> Value:
        """Any text."""
        return str(value)

    def read(self, setting: Setting) -> Value | None:
        """The content; empty without a file."""
        return read_now(self._directory / FILES[setting.resource]) or ABSENT

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError."""
        path, text = self._directory / FILES[setting.resource], str(value)
        try:
            if text == ABSENT:
                path.unlink(missing_ok=True)
                return
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            atomicfile.write(path, text.encode(), mode=0o644, durable=False)
        except OSError as error:
            raise write_error(os.fspath(path), f"{len(text)} characters", error.errno or 5) from error

    def gone(self, setting: Setting) -> bool:
        """Never."""
        return False

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Values can be compared."""
        return None

    def period(self, setting: Setting) -> float | None:
        """As everything."""
        return None
