"""What was there before our first write, on disk before that write happens.

One JSON document, replaced as a whole (write, rename), and behind it a line for each time that settings were touched
for the first time since: a runtime waits for this with every new pod, whose few settings cost one append. Nothing waits
for the disk itself: who reads the file is a later process of the same boot, which finds what this one wrote however it
ended, and a machine that lost its power has lost the cgroups too. A ledger that can't be read is set aside under
another name and said: nothing can be put back from it, but the next one must not be lost for it. Values are in v1
terms, so a ledger outlives a change of the cgroup version's text.
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
"""Appended before the document is written anew."""


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
    _saved: dict[Setting, Value] = field(default_factory=dict, compare=False)
    _lines: int = field(default=MAX_LINES, compare=False)
    """Behind the document in the file; it is written anew before the first line of this process's."""

    @classmethod
    def load(cls, path: Path, boot_id: str) -> tuple[Ledger, str]:
        """The ledger and what to say about it. Another boot's is void: its cgroups are gone."""
        try:
            content = path.read_bytes()
            if not content.strip(b"\0"):  # the name was on the disk before the content when the power went
                return cls(path, boot_id), ""
            first, *lines = content.split(b"\n")
            document = msgspec.json.decode(first, type=_Document)
            rows = [*document.rows, *_appended(lines)]
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
        originals = {Setting(row.resource, row.cgroup_dir, row.device): row.original for row in rows}
        return cls(path, boot_id, originals, dict(originals)), ""

    def save(self) -> None:
        """Any later process of this boot finds it when this returns; nothing to do when nothing changed. Raises
        LedgerError."""
        if self.path is None or self.originals == self._saved:
            return
        before = len(self._saved)
        more = list(self.originals.items())
        if self._lines < MAX_LINES and more[:before] == list(self._saved.items()):
            content, lines = b"\n" + msgspec.json.encode(_rows(more[before:])), self._lines + 1
        else:
            content, lines = msgspec.json.encode(_Document(FORMAT, self.boot_id, _rows(more))), 0
        self._lines = MAX_LINES  # behind half a line there shall be none
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
    """Up to the first that is not whole: its writer did not get to write what it was about."""
    for line in lines:
        try:
            yield from msgspec.json.decode(line, type=list[_Row])
        except msgspec.MsgspecError:
            return
