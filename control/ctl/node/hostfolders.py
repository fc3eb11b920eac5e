"""Directories outside the state directory that `up` created, so that `down` removes these and no others.

`<state-dir>/host-folders.json` lists them, parents first, and is written before the first is created: a recorded
directory that does not exist is harmless.
"""

from __future__ import annotations

import json
from pathlib import Path

from koordlet.app import atomicfile

RECORD = "host-folders.json"


def _recorded(state_dir: Path) -> list[str]:
    try:
        return [str(path) for path in json.loads((state_dir / RECORD).read_bytes())]
    except FileNotFoundError:
        return []


def create(state_dir: Path, folder: Path) -> None:
    """Create `folder` with its missing parents (0755) and record those that did not exist."""
    missing = [str(path) for path in reversed((folder, *folder.parents)) if not path.exists()]
    if not missing:
        return
    known = [path for path in _recorded(state_dir) if path not in missing]
    atomicfile.write(state_dir / RECORD, json.dumps([*known, *missing]).encode())
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def remove(state_dir: Path, registration: str) -> list[str]:
    """Remove the recorded directories and the file `registration` in them; returns those removed, deepest first.

    A directory that holds anything else stays, and stays recorded.
    """
    recorded = _recorded(state_dir)
    removed: list[str] = []
    for path in map(Path, reversed(recorded)):
        if path.is_dir():
            (path / registration).unlink(missing_ok=True)
            if any(path.iterdir()):
                break
            path.rmdir()
            removed.append(str(path))
    if left := [path for path in recorded if Path(path).exists()]:
        atomicfile.write(state_dir / RECORD, json.dumps(left).encode())
    else:
        (state_dir / RECORD).unlink(missing_ok=True)
    return removed
