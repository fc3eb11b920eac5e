"""Saves the rings for a restart, so that a 30-minute window does not start empty. Crash-safe, best effort.

One `.npz` file: written to a temporary name, synced, renamed. A snapshot that is older than `max_age`, from an earlier
boot or damaged is rejected as a whole, with a reason; the cache then starts empty.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordlet.app import atomicfile
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import BY_NAME, SeriesError

FORMAT = 1


class SnapshotError(RuntimeError):
    """The snapshot cannot be used; the message has the reason and the file."""


def save(cache: MetricCache, path: Path, now: float, boot_id: str) -> None:
    """Write all rings to `path`. Raises OSError (for one, a full disk) and leaves the old file in place."""
    index: dict[str, list[list[str]]] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomicfile.replacing(path, mode=0o644) as file, zipfile.ZipFile(file, "w") as packed:
        for name, ring in cache.rings.items():
            times, keys, values = ring.dump()
            index[name] = [list(key) for key in keys]
            _add(packed, f"{name}.times", times)
            _add(packed, f"{name}.values", values)
        header = json.dumps({"format": FORMAT, "at": now, "boot": boot_id, "series": index}).encode()
        _add(packed, "header", np.frombuffer(header, dtype=np.uint8))


def load(cache: MetricCache, path: Path, now: float, boot_id: str, *, max_age: float) -> int:
    """Fill an empty cache from `path`; returns the number of series. A missing file gives 0."""
    if not path.exists():
        return 0
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["format"] != FORMAT:
                raise SnapshotError(f"{path}: format {header['format']}, this version reads {FORMAT}")
            if header["boot"] != boot_id:
                raise SnapshotError(f"{path}: taken before the last boot")
            age = now - header["at"]
            if not 0 <= age <= max_age:
                raise SnapshotError(f"{path}: taken {age:.0f} s ago, at most {max_age:.0f} s are accepted")
            count = 0
            for name, keys in header["series"].items():
                if name not in BY_NAME:
                    continue  # a kind of a newer or older version
                times, values = stored[f"{name}.times"], stored[f"{name}.values"]
                cache.ring(name).load(times, [tuple(key) for key in keys], values)
                count += len(keys)
            return count
    except (KeyError, TypeError, ValueError, EOFError, OSError, SeriesError, zipfile.BadZipFile) as error:
        raise SnapshotError(f"{path}: not a usable snapshot: {error}") from error


def _add(packed: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """As numpy.savez, but one array at a time, so that the whole cache is never copied."""
    with packed.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)
