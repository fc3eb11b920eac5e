"""Integer sysctls (spec 03 §1.10). Reading only."""

from __future__ import annotations

from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots


def read_sysctl(roots: Roots, name: str) -> int | None:
    """`name` with dots or slashes (`vm.min_free_kbytes`); None when the kernel has no such sysctl."""
    path = roots.proc_sys / name.replace(".", "/")
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text.strip())
    except ValueError as error:
        raise MalformedFile(path, text, "expected one integer") from error
