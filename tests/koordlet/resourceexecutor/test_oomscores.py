"""oom_score_adj of a cgroup's processes: the most frequent value is the current one; with real processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.resourceexecutor import Setting
from koordlet.resourceexecutor.oomscores import OOM_SCORE_ADJ, OOMScoreStore
from koordlet.system.errors import InvalidValue
from koordlet.system.roots import Roots
from koordlet.system.write import TargetGone
from tests.koordlet.roots import roots_under

SETTING = Setting(OOM_SCORE_ADJ, "kubepods/pod1/c")


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    sleepers = [subprocess.Popen(["sleep", "infinity"]) for _ in range(3)]
    yield sleepers
    for process in sleepers:
        process.kill()
        process.wait(60)


@pytest.fixture
def store(processes: list[subprocess.Popen[bytes]]) -> OOMScoreStore:
    return OOMScoreStore(lambda directory: tuple(process.pid for process in processes), Roots.host())


def scores(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) for process in processes]


def test_all_processes_get_the_score(store: OOMScoreStore, processes: list[subprocess.Popen[bytes]]) -> None:
    store.write(SETTING, 100)
    assert scores(processes) == [100] * 3
    assert (store.read(SETTING), store.holds(SETTING, 100), store.holds(SETTING, 5)) == (100, True, False)
    Path(f"/proc/{processes[0].pid}/oom_score_adj").write_text("300")
    assert (store.read(SETTING), store.holds(SETTING, 100)) == (100, False), "what most have is no proof"
    store.write(SETTING, 100)
    assert scores(processes) == [100] * 3


def test_without_processes_there_is_no_score(tmp_path: Path) -> None:
    for pids in (None, (), (2**22 + 1,), (0,)):
        empty = OOMScoreStore(lambda directory, pids=pids: pids, Roots.host())  # type: ignore[misc]
        assert (empty.read(SETTING), empty.gone(SETTING)) == (None, True)
    store = OOMScoreStore(lambda directory: (7,), roots_under(tmp_path))
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/oom_score_adj").write_text("5\n")
    assert (store.read(SETTING), store.gone(SETTING)) == (5, False)


def test_processes_that_all_end_before_the_write(tmp_path: Path) -> None:
    file = tmp_path / "proc/7/oom_score_adj"
    file.parent.mkdir(parents=True)
    file.write_text("5\n")
    reads = 0

    def pids(directory: str) -> tuple[int, ...]:
        nonlocal reads
        reads += 1
        return (7,) if reads == 1 else ()

    class Ending(OOMScoreStore):
        def _scores(self, setting: Setting) -> dict[int, int]:
            scores = super()._scores(setting)
            file.unlink(missing_ok=True)
            return scores

    with pytest.raises(TargetGone, match="no process is left"):
        Ending(pids, roots_under(tmp_path)).write(SETTING, 100)


@pytest.mark.parametrize("value", [-1001, 1001, "5"])
def test_invalid_scores_are_refused(store: OOMScoreStore, value: int | str) -> None:
    with pytest.raises(InvalidValue, match="not a score"):
        store.check(SETTING, value)
