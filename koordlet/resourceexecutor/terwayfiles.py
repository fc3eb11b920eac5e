"""The two files with bandwidths for Terway, as settings whose value is the content of the file (spec 03 §4.13).

    terway.global    global_bps_config
    terway.pods      pod.json

Terway watches the directory, so a file is replaced as a whole; restoring removes it.
"""

from __future__ import annotations

import os
from pathlib import Path

from koordlet.app import atomicfile
from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT, SettingStore, read_now
from koordlet.system.write import write_error

GLOBAL = "terway.global"
PODS = "terway.pods"
FILES = {GLOBAL: "global_bps_config", PODS: "pod.json"}


class TerwayStore(SettingStore):
    """`directory` is created with the first file, readable for all users."""

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
        path = self._directory / FILES[setting.resource]
        text = str(value)
        try:
            if text == ABSENT:
                path.unlink(missing_ok=True)
                return
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            atomicfile.write(path, text.encode(), mode=0o644, durable=False)
        except OSError as error:
            raise write_error(os.fspath(path), f"{len(text)} characters", error.errno or 5) from error
