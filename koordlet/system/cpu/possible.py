"""The CPUs that the kernel may ever bring online: ``/sys/devices/system/cpu/possible``."""

from __future__ import annotations

from koordlet.system.roots import Roots


def possible_cpus(roots: Roots) -> int:
    """The highest possible CPU number + 1: the length of tables indexed by CPU number. Raises OSError."""
    text = (roots.sys / "devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1
