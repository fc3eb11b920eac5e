"""One file a model, so that a restart forgets nothing (spec 02 §8.4). Koordinator's format, to the letter.

A file is written beside its place, synced and renamed, so that a crash leaves the old one or the new one. The directory
is koordlet's own: plain files in it that are of no use are removed at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from koordlet.api.crs.analysis import HistogramCheckpoint
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.wire import Time, WireError, decode, encode
from koordlet.app import atomicfile
from koordlet.app.histogram import CheckpointError, pack, unpack
from koordlet.prediction.models import Models


class ModelCheckpoint(Struct):
    """One file."""

    uid: str = msgspec.field(name="UID", default="")
    cpu: HistogramCheckpoint | None = msgspec.field(name="CPU", default=None)
    memory: HistogramCheckpoint | None = msgspec.field(name="Memory", default=None)
    last_updated: Time = written(lambda: Time.from_unix(0.0), name="LastUpdated")


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the directory: what it holds, or why it is of no use."""

    path: Path
    checkpoint: ModelCheckpoint | None
    problem: str = ""


class CheckpointDirectory:
    """Files by key in one directory, which is made at the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, models: Models, key: str, now: float) -> None:
        """Save a model; `now` is Unix time. Raises OSError (a full disk) and leaves the old file in place."""
        target, row = self._file(key), models.stamps[key].row
        body = encode(
            ModelCheckpoint(
                uid=key, cpu=pack(models.cpu, row), memory=pack(models.memory, row), last_updated=Time.from_unix(now)
            )
        )
        self.path.mkdir(parents=True, exist_ok=True)
        atomicfile.write(target, body, mode=0o644)

    def remove(self, key: str) -> None:
        """Remove a model's file if there is one. Raises OSError."""
        self._file(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        if (
            "/" in key or key in ("", ".", "..") or key.endswith(atomicfile.TEMPORARY_SUFFIX)
        ):  # a UID comes from outside
            raise CheckpointError(f"{key!r} cannot be the name of a file")
        return self.path / key

    def files(self) -> Iterator[Found]:
        """Every plain file; one that was left half written, or cannot be read as a checkpoint, with the reason."""
        if not self.path.is_dir():
            return
        for path in sorted(self.path.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue
            if path.name.endswith(atomicfile.TEMPORARY_SUFFIX):
                yield Found(path, None, "left half written")
                continue
            try:
                yield Found(path, decode(path.read_bytes(), ModelCheckpoint, where=str(path)))
            except (WireError, OSError) as error:
                yield Found(path, None, str(error))

    def restore(
        self, models: Models, wanted: Callable[[str], bool], note: Callable[[str, str], None], *, ahead: float
    ) -> int:
        """Make models of the files whose names are `wanted` keys and remove all others; the number of models.

        `note(path, problem)` hears of every file that is removed and of every histogram that stays empty. `ahead` is
        what Unix time is ahead of the stamps' clock. Raises OSError.
        """
        count = 0
        for found in self.files():
            key, stored = found.path.name, found.checkpoint
            if stored is None or not wanted(key):
                note(str(found.path), found.problem or "nothing on this node has that name")
                found.path.unlink(missing_ok=True)
                continue
            row = models.make(key, stored.last_updated.unix - ahead)
            for kind, part, histograms in (("CPU", stored.cpu, models.cpu), ("Memory", stored.memory, models.memory)):
                try:
                    unpack(part, histograms, row)
                except CheckpointError as error:
                    note(f"{found.path}: {kind}", str(error))
            count += 1
        return count
