"""The audit log: one JSON line a request, metadata level, appended to a file the operator named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import msgspec

_encode = msgspec.json.Encoder().encode


class AuditLog:
    """`path` None writes nothing. Lines are flushed as written, so that a crash keeps what was answered."""

    def __init__(self, path: Path | None) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None

    def write(self, event: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(_encode(event) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
