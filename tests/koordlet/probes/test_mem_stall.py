"""mem_stall and oom without the kernel: layouts against the headers, windows, and PSI's files standing in."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes import memstall, oom
from koordlet.probes.loading.frame import ProbeError
from koordlet.probes.memstall import KINDS, PressureFiles, StallLost, diff, sums_only

BPF = Path(__file__).parents[3] / "bpf"
SLOTS = (BPF / "slots.h").read_text()


def numbers(header: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", header, re.M)}


def enum_of(header: str, name: str, prefix: str) -> list[str]:
    body = re.search(rf"^enum {name} {{(.*?)}};", header, re.M | re.S)
    assert body is not None, name
    found = re.findall(rf"\b{prefix}(\w+) = (\d+)", body[1])
    assert [int(number) for _, number in found] == list(range(len(found)))
    return [word.lower() for word, _ in found]


def struct_of(header: str, name: str) -> np.dtype:
    """The numpy type of a C structure of u64, u32, u8 and other such structures."""
    types: dict[str, object] = {"u64": "u8", "u32": "u4", "u8": "u1"}
    sizes = {**numbers(SLOTS), **numbers(header), "STALLS": len(KINDS)}
    body = re.search(rf"^struct {name} {{\n(.*?)^}};", header, re.M | re.S)
    assert body is not None, name
    fields = []
    for kind, field, count in re.findall(r"^\t((?:struct )?\w+) (\w+)(?:\[(\w+)\])?;", body[1], re.M):
        base = struct_of(header, kind.split()[1]) if kind.startswith("struct ") else types[kind]
        fields.append((field, base, sizes.get(count) or int(count)) if count else (field, base))
    return np.dtype(fields)


STALL_H, OOM_H = (BPF / "mem_stall.h").read_text(), (BPF / "oom.h").read_text()


@pytest.mark.parametrize(
    ("header", "name", "dtype"),
    [
        (STALL_H, "stall_kind_stats", memstall.KIND_STATS),
        (STALL_H, "stall_stats", memstall.STALL_STATS),
        (STALL_H, "limit_entry", memstall.LIMIT_ENTRY),
        (STALL_H, "stall_lost", memstall.LOST),
        (OOM_H, "oom_counts", oom.COUNTS),
        (OOM_H, "oom_event", oom.EVENT),
    ],
    ids=["kind", "stats", "limit", "lost", "counts", "event"],
)
def test_structures_agree(header: str, name: str, dtype: np.dtype) -> None:
    assert struct_of(header, name) == dtype
    assert dtype.itemsize % 8 == 0


def test_names_and_numbers_agree() -> None:
    kinds = enum_of(STALL_H, "stall_kind", "STALL_")
    assert tuple(kinds) == KINDS
    assert tuple(enum_of(OOM_H, "oom_scope", "OOM_")) == oom.SCOPES
    assert numbers(STALL_H)["MEM_STALL_VERSION"] == memstall.VERSION
    found = numbers(OOM_H)
    assert (found["OOM_VERSION"], found["OOM_EVENTS"], found["OOM_PENDING"]) == (oom.VERSION, oom.EVENTS, oom.PENDING)
    assert (found["NAME"], found["COMM"]) == (oom.NAME, oom.COMM)


def snapshot(totals: dict[int, int], limits: dict[tuple[int, int], tuple[int, int]]) -> memstall.MemStallSnapshot:
    """*totals*: key -> ns; *limits*: (task, limit) -> (ns, count)."""
    pairs = sorted(limits)
    columns = [np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)] or [np.zeros(0, np.int64)] * 2
    return replace(
        sums_only(totals),
        task=columns[0],
        limit=columns[1],
        limit_ns=np.array([limits[pair][0] for pair in pairs], dtype=np.int64),
        limit_count=np.array([limits[pair][1] for pair in pairs], dtype=np.int64),
    )


keys = st.integers(1, 6)
totals = st.dictionaries(keys, st.integers(0, 1 << 40))
limits = st.dictionaries(st.tuples(keys, st.integers(0, 4)), st.tuples(st.integers(0, 1 << 40), st.integers(0, 1000)))


@given(totals, limits, totals, limits)
def test_a_window_is_the_difference_by_key(old_totals, old_limits, more_totals, more_limits) -> None:
    new_totals = {key: old_totals.get(key, 0) + more for key, more in more_totals.items()}
    new_limits = {
        pair: tuple(a + b for a, b in zip(old_limits.get(pair, (0, 0)), more, strict=True))
        for pair, more in more_limits.items()
    }
    window = diff(snapshot(old_totals, old_limits), snapshot(new_totals, new_limits))
    assert dict(zip(window.keys.tolist(), window.sum_ns.sum(axis=1).tolist(), strict=True)) == more_totals
    pairs = zip(window.task.tolist(), window.limit.tolist(), strict=True)
    counted = zip(window.limit_ns.tolist(), window.limit_count.tolist(), strict=True)
    assert dict(zip(pairs, counted, strict=True)) == more_limits


def test_what_ran_back_counts_from_zero() -> None:
    window = diff(snapshot({5: 100, 6: 7}, {}), snapshot({5: 40, 6: 9}, {}))
    assert window.sum_ns.sum(axis=1).tolist() == [40, 2]
    assert window.lost == StallLost()


def group(root: Path, name: str, total_us: int) -> int:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "memory.pressure").write_text(f"some avg10=0.00 total={total_us}\nfull avg10=0.00 total=0\n")
    return directory.stat().st_ino


def test_pressure_files_stand_in_under_the_ids_of_the_other_tree(tmp_path: Path) -> None:
    unified, cpu = tmp_path / "unified", tmp_path / "cpu"
    group(unified, "kubepods/pod1", 12)
    group(unified, "only-here", 99)
    (cpu / "kubepods/pod1").mkdir(parents=True)
    seen = PressureFiles(unified, cpu).read()
    row = seen.row((cpu / "kubepods/pod1").stat().st_ino)
    assert row is not None and len(seen.keys) == 1
    assert seen.sum_ns[row].tolist() == [0] * (len(KINDS) - 1) + [12_000]
    assert seen.source == "pressure"


def test_a_kernel_without_pressure_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="no cgroup2"):
        PressureFiles(None, tmp_path)
    with pytest.raises(ProbeError, match=r"no memory\.pressure"):
        PressureFiles(tmp_path, tmp_path)
