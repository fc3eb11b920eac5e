"""What was there before our first write, on disk before that write happens.

One JSON document, replaced as a whole (write, fsync, rename), and only when a setting is touched for the first time or
let go. A ledger that can't be read is set aside under another name and said: nothing can be put back from it, but the
next one must not be lost for it. Values are in v1 terms, so a ledger outlives a change of the cgroup version's text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from koordlet.resourceexecutor.settings import Setting, Value

FORMAT = 1


class LedgerError(Exception):
    """The ledger can't be read or written; the message names file and cause."""


class _Row(msgspec.Struct, array_like=True):
    resource: str
    cgroup_dir: str | None
    device: str
    original: int | str


class _Document(msgspec.Struct):
    format: int
    boot_id: str
    rows: list[_Row]


@dataclass
class Ledger:
    """`originals`: what each touched setting held before us. `path` None keeps it in memory only."""

    path: Path | None
    boot_id: str
    originals: dict[Setting, Value] = field(default_factory=dict)
    _saved: dict[Setting, Value] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, boot_id: str) -> tuple[Ledger, str]:
        """The ledger and what to say about it. Another boot's is void: its cgroups are gone."""
        try:
            document = msgspec.json.decode(path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return cls(path, boot_id), ""
        except OSError as error:
            raise LedgerError(f"{path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            return cls(path, boot_id), f"{path}: {error}; kept as {aside.name}, its settings can't be put back"
        if document.format != FORMAT or document.boot_id != boot_id:
            return cls(path, boot_id), ""
        originals = {Setting(row.resource, row.cgroup_dir, row.device): row.original for row in document.rows}
        return cls(path, boot_id, originals, dict(originals)), ""

    def save(self) -> None:
        """Durable when this returns; nothing to do when nothing changed. Raises LedgerError."""
        if self.path is None or self.originals == self._saved:
            return
        rows = [
            _Row(setting.resource, setting.cgroup_dir, setting.device, value)
            for setting, value in self.originals.items()
        ]
        temporary = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(_Document(FORMAT, self.boot_id, rows)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        self._saved = dict(self.originals)
