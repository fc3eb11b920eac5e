"""The audit log: one JSON line per request, at metadata level, appended to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from koordlet.app.logging import get_logger

log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class RequestAuditLog:
    """With `path` None nothing is written. Each line is written at once, so that it survives a crash of the process.

    A line that can't be written (a full disk) is counted in `lost` and doesn't fail the request.
    """

    def __init__(self, path: Path | None) -> None:
        self.lost = 0
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, event: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, _encode(event) + b"\n")
        except OSError as error:
            if not self.lost:
                log.error("Cannot write the audit log, counting lost lines", err=error)
            self.lost += 1

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.lost:
            log.error("The audit log is incomplete", lost=self.lost)
