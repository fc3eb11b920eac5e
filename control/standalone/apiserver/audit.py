"""The audit log: one JSON line a request, metadata level, appended to a file the operator named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from koordlet.app.logging import get_logger

log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class RequestAuditLog:
    """`path` None writes nothing. Lines are flushed as written, so that a crash keeps what was answered.

    A line that can't be written (a full disk) is counted in `lost`, and doesn't fail the request: reads have to go on.
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
                log.error("Cannot write the audit log; counting what is lost", err=error)
            self.lost += 1

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.lost:
            log.error("The audit log is not complete", lost=self.lost)
