"""`oom_score_adj` of all processes of a cgroup as one setting (spec 03 §4.14).

The kernel keeps the value per process, and child processes inherit it. The value of the setting is the most common one;
it holds when all processes have it. A process that enters a container in another way (`kubectl exec`) is found at the
next check.
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
LOWEST = -1000
HIGHEST = 1000
CHECK_PERIOD_S: Final = 10.0

Processes = Callable[[str], tuple[int, ...] | None]
"""Process ids of a cgroup directory; None when it does not exist. Raises KernelFileError."""


class OOMScoreStore:
    """A `SettingStore` of processes' OOM scores."""

    resources: Collection[str] = (OOM_SCORE_ADJ,)

    def __init__(self, processes: Processes, roots: Roots) -> None:
        self._processes = processes
        self._roots = roots

    def check(self, setting: Setting, value: Value) -> Value:
        """Scores from -1000 to 1000 of a cgroup."""
        if setting.cgroup_dir is None or not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
            raise InvalidValue(setting.label, value, f"not a score from {LOWEST} to {HIGHEST} of a cgroup")
        return value

    def read(self, setting: Setting) -> Value | None:
        """The most common score, of two equally common ones the lower; None without processes."""
        counts = Counter(self._scores(setting).values())
        return min(counts, key=lambda score: (-counts[score], score)) if counts else None

    def gone(self, setting: Setting) -> bool:
        """Whether the cgroup has no process (yet)."""
        return not self._scores(setting)

    def holds(self, setting: Setting, desired: Value) -> bool | None:
        """Whether every process has the score."""
        return set(self._scores(setting).values()) == {desired}

    def period(self, setting: Setting) -> float | None:
        """Short, because processes start and end."""
        return CHECK_PERIOD_S

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError. Processes that end meanwhile are ignored."""
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
        scores = {}
        for pid in self._processes(setting.cgroup_dir or "") or ():
            score = read_oom_score_adj(self._roots, pid) if pid else None  # pid 0: a process of another PID namespace
            if score is not None:
                scores[pid] = score
        return scores
