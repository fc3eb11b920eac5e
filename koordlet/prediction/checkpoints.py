"""One file per model, so that a restart loses nothing (spec 02 §8.4). Exactly Koordinator's format.

A file is written to a temporary name, synced and renamed, so that a crash leaves the old or the new content. The
directory belongs to koordlet: regular files in it that cannot be used are removed at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from koordlet.api.crs.analysis import HistogramCheckpoint
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.wire import Time, WireError, decode, encode
from koordlet.app import atomicfile
from koordlet.app.histogram import CheckpointError, pack, unpack
from koordlet.prediction.models import PredictionModels


class ModelCheckpoint(Struct):
    """One file."""

    uid: str = msgspec.field(name="UID", default="")
    cpu: HistogramCheckpoint | None = msgspec.field(name="CPU", default=None)
    memory: HistogramCheckpoint | None = msgspec.field(name="Memory", default=None)
    last_updated: Time = written(lambda: Time.from_unix(0.0), name="LastUpdated")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file of the directory: its content, or why it cannot be used."""

    path: Path
    checkpoint: ModelCheckpoint | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: counts, and the problem of every file or histogram that could not be used."""

    models: int
    gone: int
    """Files of pods that are not on this node any more; they were removed."""
    problems: Mapping[str, str]
    """Path, or `path: histogram`, -> reason."""


class CheckpointDirectory:
    """Files by key in one directory, which is created at the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, models: PredictionModels, key: str, now: float) -> None:
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
        # A UID comes from outside.
        if "/" in key or key in ("", ".", "..") or key.endswith(atomicfile.TEMPORARY_SUFFIX):
            raise CheckpointError(f"{key!r} cannot be the name of a file")
        return self.path / key

    def files(self) -> Iterator[CheckpointFile]:
        """Every regular file; one that is partly written, or no valid checkpoint, with the reason."""
        if not self.path.is_dir():
            return
        for path in sorted(self.path.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue
            if path.name.endswith(atomicfile.TEMPORARY_SUFFIX):
                yield CheckpointFile(path, None, "partly written")
                continue
            try:
                yield CheckpointFile(path, decode(path.read_bytes(), ModelCheckpoint, where=str(path)))
            except (WireError, OSError) as error:
                yield CheckpointFile(path, None, str(error))

    def restore(
        self,
        models: PredictionModels,
        expected: Callable[[str], bool],
        *,
        unix_offset: float,
    ) -> Restored:
        """Create models from the files whose names are `expected` keys, and remove all other files.

        `unix_offset` is Unix time minus the stamps' clock. Raises OSError.
        """
        count = gone = 0
        problems: dict[str, str] = {}
        for file in self.files():
            key, stored = file.path.name, file.checkpoint
            if stored is None or not expected(key):
                if stored is None:
                    problems[str(file.path)] = file.problem
                else:
                    gone += 1
                file.path.unlink(missing_ok=True)
                continue
            row = models.make(key, stored.last_updated.unix - unix_offset)
            for kind, part, histograms in (("CPU", stored.cpu, models.cpu), ("Memory", stored.memory, models.memory)):
                try:
                    unpack(part, histograms, row)
                except CheckpointError as error:
                    problems[f"{file.path}: {kind}"] = str(error)
            count += 1
        return Restored(count, gone, problems)
