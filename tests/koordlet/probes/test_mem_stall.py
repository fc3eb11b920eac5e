"""mem_stall without the kernel: windows, and PSI's files as the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.loading.frame import ProbeError
from koordlet.probes.memstall.files import PressureFiles
from koordlet.probes.memstall.snapshot import KINDS, MemStallSnapshot, StallLosses, diff, sums_only
from tests.koordlet.probes.rows import row_of


def snapshot(totals: dict[int, int], limits: dict[tuple[int, int], tuple[int, int]]) -> MemStallSnapshot:
    """`totals`: key -> ns; `limits`: (task, limit) -> (ns, count)."""
    pairs = sorted(limits)
    columns = [np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)] or [np.zeros(0, np.int64)] * 2
    return replace(
        sums_only(totals),
        limits=CulpritMatrix(  # type: ignore[misc]
            *columns,
            ns=np.array([limits[pair][0] for pair in pairs], dtype=np.int64),
            count=np.array([limits[pair][1] for pair in pairs], dtype=np.int64),
        ),
    )


keys = st.integers(1, 6)
totals = st.dictionaries(keys, st.integers(0, 1 << 40))
limits = st.dictionaries(st.tuples(keys, st.integers(0, 4)), st.tuples(st.integers(0, 1 << 40), st.integers(0, 1000)))


@given(totals, limits, totals, limits)
def test_a_window_is_the_difference_by_key(
    old_totals: dict[int, int],
    old_limits: dict[tuple[int, int], tuple[int, int]],
    more_totals: dict[int, int],
    more_limits: dict[tuple[int, int], tuple[int, int]],
) -> None:
    new_totals = {key: old_totals.get(key, 0) + more for key, more in more_totals.items()}
    new_limits = {
        pair: tuple(a + b for a, b in zip(old_limits.get(pair, (0, 0)), more, strict=True))
        for pair, more in more_limits.items()
    }
    window = diff(snapshot(old_totals, old_limits), snapshot(new_totals, new_limits))  # type: ignore[arg-type]
    assert dict(zip(window.keys.tolist(), window.sum_ns.sum(axis=1).tolist(), strict=True)) == more_totals
    pairs = zip(window.limits.victim.tolist(), window.limits.culprit.tolist(), strict=True)
    counted = zip(window.limits.ns.tolist(), window.limits.count.tolist(), strict=True)
    assert dict(zip(pairs, counted, strict=True)) == more_limits


def test_sums_that_ran_back_count_from_zero() -> None:
    window = diff(snapshot({5: 100, 6: 7}, {}), snapshot({5: 40, 6: 9}, {}))
    assert window.sum_ns.sum(axis=1).tolist() == [40, 2]
    assert window.lost == StallLosses()


def group(root: Path, name: str, total_us: int) -> int:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "memory.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n")
    return directory.stat().st_ino


def test_pressure_files_have_the_ids_of_the_naming_tree(tmp_path: Path) -> None:
    unified, cpu = tmp_path / "unified", tmp_path / "cpu"
    group(unified, "kubepods/pod1", 12)
    group(unified, "only-here", 99)
    (cpu / "kubepods/pod1").mkdir(parents=True)
    pressure = PressureFiles(unified, cpu).read()
    row = row_of(pressure, (cpu / "kubepods/pod1").stat().st_ino)
    assert row is not None and len(pressure.keys) == 1
    assert pressure.sum_ns[row].tolist() == [0] * (len(KINDS) - 1) + [12_000]
    assert pressure.source == "pressure"


def test_a_kernel_without_pressure_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="no cgroup2"):
        PressureFiles(None, tmp_path)
    with pytest.raises(ProbeError, match=r"no memory\.pressure"):
        PressureFiles(tmp_path, tmp_path)
