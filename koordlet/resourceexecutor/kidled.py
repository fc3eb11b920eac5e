"""Switches on kidled, the page scanner of Anolis and Alibaba kernels (spec 02 §5.11)."""

from __future__ import annotations

from koordlet.system.proc import kidled
from koordlet.system.roots import Roots
from koordlet.system.write import WriteError, write_value


def enable_kidled(roots: Roots) -> None:
    """Raises OSError if the kernel refuses a value."""
    for name, value in kidled.ENABLE.items():
        try:
            write_value(kidled.directory(roots) / name, value)
        except WriteError as error:
            raise OSError(error.errno, str(error)) from error
