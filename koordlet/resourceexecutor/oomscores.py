"""`oom_score_adj` of all processes of a cgroup as one setting (spec 03 §4.14).

The kernel keeps the value by process, and what a process starts inherits it. The setting's value is what most of them
have; it holds when all have it. What comes into a container by another way than from one of its processes
(`kubectl exec`) is found at the next look.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.system.errors import InvalidValue
from koordlet.system.proc.procfs import read_oom_score_adj
from koordlet.system.roots import Roots
from koordlet.system.write import TargetGone, write_value

OOM_SCORE_ADJ: Final = "oom_score_adj"
LOWEST, HIGHEST = -1000, 1000
LOOK_SECONDS: Final = 10.0

Processes = Callable[[str], tuple[int, ...] | None]
"""Process ids of a cgroup directory; None when it is gone. Raises KernelFileError."""


class OOMScores:
    """A `Store`."""

    resources: Collection[str] = (OOM_SCORE_ADJ,)

    def __init__(self, processes: Processes, roots: Roots) -> None:
        self._processes, self._roots = processes, roots

    def check(self, setting: Setting, value: Value) -> Value:
        """A score."""
        if setting.cgroup_dir is None or not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
            raise InvalidValue(setting.label, value, f"not a score from {LOWEST} to {HIGHEST} of a cgroup")
        return value

    def read(self, setting: Setting) -> Value | None:
        """What most processes have, the lower of two that are as common; None without processes."""
        found = Counter(self._scores(setting).values())
        return min(found, key=lambda score: (-found[score], score)) if found else None

    def gone(self, setting: Setting) -> bool:
        """Nobody is in there (yet)."""
        return not self._scores(setting)

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Whether every process has it."""
        return set(self._scores(setting).values()) == {asked}

    def period(self, setting: Setting) -> float | None:
        """Processes come and go."""
        return LOOK_SECONDS

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError; processes that end meanwhile are nobody's loss."""
        wrong = [pid for pid, score in self._scores(setting).items() if score != value]
        gone = 0
        for pid in wrong:
            try:
                write_value(os.fspath(self._roots.proc / str(pid) / OOM_SCORE_ADJ), str(value))
            except TargetGone:
                gone += 1
        if wrong and gone == len(wrong) and not self._scores(setting):
            raise TargetGone(setting.label, str(value), errno.ESRCH, "no process is left")

    def _scores(self, setting: Setting) -> dict[int, int]:
        found = {}
        for pid in self._processes(setting.cgroup_dir or "") or ():
            score = read_oom_score_adj(self._roots, pid) if pid else None  # 0: of another PID namespace
            if score is not None:
                found[pid] = score
        return found
