"""The file for koordlet: whole or as it was (spec 08 §1.3)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordlet.api.deviceinfos import DeviceDescription

MODE = 0o644
WORK_DIRECTORY = "ic-device-tmp"
"""Of earlier releases; never made here."""


def text_of(devices: Sequence[DeviceDescription]) -> bytes:
    """The content: a JSON array, indented."""
    return msgspec.json.format(msgspec.json.encode(devices), indent=2) + b"\n"


def write(path: Path, devices: Sequence[DeviceDescription]) -> None:
    """Replace `path`; its directory must exist. Readers see the old or the new content. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), MODE)
            file.write(text_of(devices))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def show(devices: Sequence[DeviceDescription]) -> None:
    """On standard output, where no file is named."""
    sys.stdout.write(text_of(devices).decode())
    sys.stdout.flush()


def sweep(path: Path) -> None:
    """Take away what a daemon left half written that was killed. Raises OSError."""
    for left in path.parent.glob(f"{_prefix(path)}*"):
        left.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """The file and the work directory of earlier releases. Raises OSError."""
    shutil.rmtree(path.parent / WORK_DIRECTORY, ignore_errors=True)
    path.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    """Hidden, so that koordlet passes it over."""
    return f".{path.name}"
