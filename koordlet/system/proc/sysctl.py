"""Integer sysctls and the scheduler's feature switches (spec 03 §1.10). Reading only."""

from __future__ import annotations

from pathlib import Path

from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

_SCHED_FEATURES = ("kernel/debug/sched_features", "kernel/debug/sched/features")


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


def sched_features_path(roots: Roots) -> Path | None:
    """Linux 5.13 moved the file into a directory. None where debugfs is not mounted, as is common."""
    return next((path for name in _SCHED_FEATURES if (path := roots.sys / name).exists()), None)


def read_sched_features(roots: Roots) -> dict[str, bool] | None:
    path = sched_features_path(roots)
    text = read_text(path) if path else None
    return None if text is None else parse_sched_features(text, str(path))


def parse_sched_features(text: str, path: str = "sched_features") -> dict[str, bool]:
    """`NO_X` is off, `X` on; the same feature both ways is a MalformedFile."""
    features: dict[str, bool] = {}
    for token in text.split():
        name = token.removeprefix("NO_")
        on = name == token
        if features.setdefault(name, on) != on:
            raise MalformedFile(path, token, f"{name} is listed both on and off")
    return features
