"""The file for koordlet, replaced as a whole (spec 08 §1.3)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordlet.api.deviceinfos import DeviceDescription
from koordlet.app import atomicfile

MODE = 0o644
WORK_DIRECTORY = "ic-device-tmp"
"""Created by earlier releases only."""


def text_of(devices: Sequence[DeviceDescription]) -> bytes:
    """The content: a JSON array, indented."""
    return msgspec.json.format(msgspec.json.encode(devices), indent=2) + b"\n"


def write(path: Path, devices: Sequence[DeviceDescription]) -> None:
    """Replace `path`; its directory must exist. Readers see the old or the new content. Raises OSError."""
    atomicfile.write(path, text_of(devices), mode=MODE)


def show(devices: Sequence[DeviceDescription]) -> None:
    """Print the content to standard output, when no file is configured."""
    sys.stdout.write(text_of(devices).decode())
    sys.stdout.flush()


def sweep(path: Path) -> None:
    """Remove partly written files that a killed daemon left, also those of earlier releases. Raises OSError."""
    path.with_name(path.name + atomicfile.TEMPORARY_SUFFIX).unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}*"):
        leftover.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove the file and the work directory of earlier releases. Raises OSError."""
    shutil.rmtree(path.parent / WORK_DIRECTORY, ignore_errors=True)
    path.unlink(missing_ok=True)
