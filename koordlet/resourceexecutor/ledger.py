"""The original values of settings, on disk before koordlet's first write to each.

The file is one JSON document, replaced as a whole, followed by one line for each later time that settings were written
for the first time: a runtime waits for this with every new pod, whose few settings cost one append. Nothing waits for
the disk: the reader is a later process of the same boot, which sees every write of this one however it ended, and a
machine that lost power has lost its cgroups too. An unreadable ledger is renamed and logged: nothing can be restored
from it, but the next one must not be lost because of it. Values are in v1 units, so a ledger does not depend on the
cgroup version.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from koordlet.app import atomicfile
from koordlet.resourceexecutor.settings import Setting, Value

FORMAT = 1
MAX_LINES = 64
"""Lines that are appended before the document is written again."""


class LedgerError(Exception):
    """The ledger cannot be read or written; the message contains file and cause."""


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
    """`originals`: the value of each setting before koordlet's first write. `path` None keeps it in memory only."""

    path: Path | None
    boot_id: str
    originals: dict[Setting, Value] = field(default_factory=dict)
    _saved: dict[Setting, Value] = field(default_factory=dict, compare=False)
    _lines: int = field(default=MAX_LINES, compare=False)
    """Lines after the document in the file. A new process writes the document again before its first line."""

    @classmethod
    def load(cls, path: Path, boot_id: str) -> tuple[Ledger, str]:
        """The ledger and a message for the log, or "". The ledger of another boot is void: its cgroups are gone."""
        try:
            content = path.read_bytes()
            if not content.strip(b"\0"):  # after a power failure: the rename was on disk, the content was not
                return cls(path, boot_id), ""
            first, *lines = content.split(b"\n")
            document = msgspec.json.decode(first, type=_Document)
            rows = [*document.rows, *_appended(lines)]
        except FileNotFoundError:
            return cls(path, boot_id), ""
        except OSError as error:
            raise LedgerError(f"{path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            renamed = path.with_suffix(".unreadable")
            path.replace(renamed)
            return cls(path, boot_id), f"{path}: {error}; kept as {renamed.name}, its settings cannot be restored"
        if document.format != FORMAT or document.boot_id != boot_id:
            return cls(path, boot_id), ""
        originals = {Setting(row.resource, row.cgroup_dir, row.device): row.original for row in rows}
        return cls(path, boot_id, originals, dict(originals)), ""

    def save(self) -> None:
        """Write the changes, if any. Afterwards any later process of this boot can read them. Raises LedgerError."""
        if self.path is None or self.originals == self._saved:
            return
        saved = len(self._saved)
        originals = list(self.originals.items())
        if self._lines < MAX_LINES and originals[:saved] == list(self._saved.items()):
            content = b"\n" + msgspec.json.encode(_rows(originals[saved:]))
            lines = self._lines + 1
        else:
            content = msgspec.json.encode(_Document(FORMAT, self.boot_id, _rows(originals)))
            lines = 0
        self._lines = MAX_LINES  # if the write fails, the next one replaces the document: nothing follows half a line
        try:
            self._write(content, whole=not lines)
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        self._lines = lines
        self._saved = dict(self.originals)

    def _write(self, content: bytes, *, whole: bool) -> None:
        assert self.path is not None
        if whole:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomicfile.write(self.path, content, durable=False)  # a ledger is of no use after a restart of the machine
            return
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_APPEND)
        try:
            if os.write(file, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def _rows(settings: Iterable[tuple[Setting, Value]]) -> list[_Row]:
    return [_Row(setting.resource, setting.cgroup_dir, setting.device, value) for setting, value in settings]


def _appended(lines: list[bytes]) -> Iterator[_Row]:
    """Rows up to the first incomplete line; its writer ended before it wrote those settings."""
    for line in lines:
        try:
            yield from msgspec.json.decode(line, type=list[_Row])
        except msgspec.MsgspecError:
            return
