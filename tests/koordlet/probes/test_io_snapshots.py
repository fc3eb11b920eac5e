"""The block-I/O and network probes without a kernel: layouts, files, ids, windows and the merged matrix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes.blockio import probe as blockio
from koordlet.probes.blockio.files import BlockFiles, counts_only, parse_blkio, parse_io_stat
from koordlet.probes.blockio.snapshot import DISCARD, READ, WRITE, BlockIOSnapshot, device_name, device_number, diff
from koordlet.probes.culprits.blame import merge
from koordlet.probes.culprits.owners import BLKIO, NETNS, SPECIAL, TASK, OwnerIds, tag
from koordlet.probes.netstall import probe as netstall
from koordlet.probes.netstall.files import retrans_segs
from koordlet.probes.schedlatency import layout

BPF = Path(__file__).parents[3] / "bpf"
COUNTS = {"BUCKETS": 26, "IO_HISTS": 2, "IO_DIRECTIONS": 4, "IO_RING": blockio.RING}


def struct_of(header: str, name: str) -> np.dtype[Any]:
    """The numpy type that the C structure has."""
    text = (BPF / header).read_text()
    body = re.search(rf"^struct {name} {{\n(.*?)^}};", text, re.M | re.S)
    assert body is not None
    fields: list[Any] = []
    for kind, field, dimensions in re.findall(r"^\t(u64|u32|struct \w+) (\w+)((?:\[\w+\])*);", body[1], re.M):
        base = {"u64": "u8", "u32": "u4"}.get(kind) or struct_of(header, kind.removeprefix("struct "))
        shape = tuple(COUNTS.get(n) or int(n) for n in re.findall(r"\[(\w+)\]", dimensions))
        fields.append((field, base, shape) if shape else (field, base))
    return np.dtype(fields)


@pytest.mark.parametrize(
    ("header", "name", "dtype"),
    [
        ("block_io.h", "io_stats", blockio.IO_STATS),
        ("block_io.h", "io_device", blockio.IO_DEVICE),
        ("block_io.h", "io_cpu", blockio.IO_CPU),
        ("net_stall.h", "net_stats", netstall.NET_STATS),
        ("net_stall.h", "net_cpu", netstall.NET_CPU),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_structures_agree(header: str, name: str, dtype: np.dtype[Any]) -> None:
    assert struct_of(header, name) == dtype


def test_constants_agree() -> None:
    text = (BPF / "block_io.h").read_text() + (BPF / "owners.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", text, re.M)}
    assert found["IO_RING"] == blockio.RING
    assert found["DEVICES"] == blockio.DEVICES
    assert found["TAG_DEVICE_SHIFT"] == blockio.DEVICE_SHIFT
    assert found["TAG_SPACE_SHIFT"] == 60
    assert blockio.IO_STATS.itemsize == 1024
    assert netstall.NET_STATS.itemsize == 320


# --- files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=512 dios=2\n", {"8:0": [[4096, 0, 512, 0], [1, 0, 2, 0]]}),
        ("8:0 rbytes=1 new=7\n259:3 wios=5\n", {"8:0": [[1, 0, 0, 0], [0] * 4], "259:3": [[0] * 4, [0, 5, 0, 0]]}),
    ],
    ids=["empty", "all keys", "unknown keys"],
)
def test_io_stat(text: str, expected: dict[str, list[list[int]]]) -> None:
    assert parse_io_stat(text) == {device_number(name): rows for name, rows in expected.items()}


def test_blkio_files() -> None:
    found = parse_blkio(
        "7:0 Read 100\n7:0 Write 20\n7:0 Sync 3\n7:0 Discard 9\n7:0 Total 120\nTotal 120\n", "7:0 Read 2\n"
    )
    assert found == {device_number("7:0"): [[100, 20, 9, 0], [2, 0, 0, 0]]}
    assert (READ, WRITE, DISCARD) == (0, 1, 2)


@given(st.integers(0, 4095), st.integers(0, (1 << 20) - 1))
def test_device_names_return(major: int, minor: int) -> None:
    assert device_name(device_number(f"{major}:{minor}")) == f"{major}:{minor}"


def test_files_stand_in_with_ids_of_the_naming_tree(tmp_path: Path) -> None:
    for tree in ("blkio", "cpu"):
        (tmp_path / tree / "pod/one").mkdir(parents=True)
    (tmp_path / "blkio/only-here").mkdir()
    for name, size in (("pod/one", 4096), ("only-here", 1)):
        (tmp_path / "blkio" / name / "blkio.throttle.io_service_bytes").write_text(f"7:1 Write {size}\nTotal {size}\n")
        (tmp_path / "blkio" / name / "blkio.throttle.io_serviced").write_text("7:1 Write 1\nTotal 1\n")
    snapshot = BlockFiles(tmp_path / "blkio", tmp_path / "cpu", unified=False).read()
    assert snapshot.keys.tolist() == [(tmp_path / "cpu/pod/one").stat().st_ino]
    assert snapshot.bytes.tolist() == [[0, 4096, 0, 0]]
    assert snapshot.ops.tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tcp: RtoAlgorithm RetransSegs\nTcp: 1 42\nUdp: a\nUdp: 1\n", 42),
        ("Tcp: RtoAlgorithm\nTcp: 1\n", None),
        ("Tcp: RetransSegs More\nTcp: 1\n", None),
        ("", None),
    ],
    ids=["there", "no such column", "damaged", "empty"],
)
def test_retransmits_of_a_namespace(text: str, expected: int | None) -> None:
    assert retrans_segs(text) == expected


# --- ids


@pytest.fixture
def trees(tmp_path: Path) -> tuple[OwnerIds, Path]:
    for tree in ("cpu", "blkio"):
        (tmp_path / tree / "pod/one").mkdir(parents=True)
        (tmp_path / tree / "pod/two").mkdir()
    (tmp_path / "blkio/pod/one/inner").mkdir()
    for pid, namespace in (("1", "host"), ("11", "pod"), ("12", "pod"), ("13", "lone")):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
        real = tmp_path / "ns" / namespace
        real.parent.mkdir(exist_ok=True)
        real.touch()
        (tmp_path / "proc" / pid / "ns/net").symlink_to(real)
    (tmp_path / "cpu/pod/one/cgroup.procs").write_text("11\n")
    (tmp_path / "cpu/pod/two/cgroup.procs").write_text("12\n")
    (tmp_path / "cpu/lone").mkdir()
    (tmp_path / "cpu/lone/cgroup.procs").write_text("99\n13\n")
    (tmp_path / "cpu/cgroup.procs").write_text("1\n")
    return OwnerIds(tmp_path / "cpu", {BLKIO: tmp_path / "blkio"}, tmp_path / "proc", min_interval=0), tmp_path


def inode(path: Path) -> int:
    return path.stat().st_ino


@pytest.mark.parametrize(
    ("space", "named", "expected"),
    [
        (BLKIO, "blkio/pod/one", "cpu/pod/one"),
        (BLKIO, "blkio/pod/one/inner", "cpu/pod/one"),
        (NETNS, "ns/pod", "cpu/pod"),
        (NETNS, "ns/lone", "cpu/lone"),
        (NETNS, "ns/host", "cpu"),
        (TASK, "cpu/pod/two", "cpu/pod/two"),
    ],
    ids=["same path", "closest ancestor", "a pod's namespace", "first process is gone", "the host's", "no translation"],
)
def test_foreign_ids_become_ids_of_the_naming_tree(
    trees: tuple[OwnerIds, Path], space: int, named: str, expected: str
) -> None:
    ids, root = trees
    tags = np.array([tag(space, inode(root / named))], dtype=np.int64)
    assert ids.translate(tags).tolist() == [inode(root / expected)]


def test_specials_and_strangers_stay_what_they_are(trees: tuple[OwnerIds, Path]) -> None:
    ids, _ = trees
    stranger = tag(BLKIO, 12345678901)
    tags = np.array([tag(SPECIAL, 2), -10, 0, stranger], dtype=np.int64)
    assert ids.translate(tags).tolist() == [layout.special_key(2), -10, 0, stranger]


def test_a_namespace_that_changes_hands_is_told(trees: tuple[OwnerIds, Path]) -> None:
    ids, root = trees
    lone = tag(NETNS, inode(root / "ns/lone"))
    tags = np.array([lone], dtype=np.int64)
    ids.translate(tags)
    assert ids.moved_out() == []
    (root / "cpu/lone/cgroup.procs").unlink()
    (root / "cpu/lone").rmdir()
    assert ids.moved_out() == [lone]
    (root / "cpu/pod/two/cgroup.procs").write_text("13\n")
    assert ids.translate(tags).tolist() == [inode(root / "cpu/pod/two")]


def test_an_id_that_nobody_knows_is_looked_for_more_and_more_seldom(trees: tuple[OwnerIds, Path]) -> None:
    _, root = trees
    now, looks = 0.0, []

    class Counted(OwnerIds):
        def _paths(self, space: int, unknown: set[int]) -> dict[int, int]:
            looks.append(now)
            return super()._paths(space, unknown)

    ids = Counted(root / "cpu", {BLKIO: root / "blkio"}, root / "proc", clock=lambda: now)
    stranger = tag(BLKIO, 12345678901)
    for second in range(400):
        now = float(second)
        ids.translate(np.array([stranger], dtype=np.int64))
    assert looks == [0, 2, 6, 14, 30, 62, 126, 190, 254, 318, 382]
    newcomer = tag(BLKIO, inode(root / "blkio/pod/one"))
    assert ids.translate(np.array([stranger, newcomer])).tolist() == [stranger, inode(root / "cpu/pod/one")]
    ids.translate(np.array([stranger]), walk=True)
    assert looks[-2:] == [399, 399]


# --- windows

counts = st.dictionaries(st.tuples(st.integers(1, 5), st.integers(0, 2)), st.integers(1, 10**9), max_size=8)


def snapshot_of(found: dict[tuple[int, int], int]) -> BlockIOSnapshot:
    return counts_only({row: [[size, 0, 0, 0], [1, 0, 0, 0]] for row, size in found.items()})


@given(counts, counts)
def test_a_window_is_what_was_added(old: dict[tuple[int, int], int], added: dict[tuple[int, int], int]) -> None:
    new = {row: old.get(row, 0) + added.get(row, 0) for row in old | added}
    window = diff(snapshot_of(old), snapshot_of(new))
    rows = zip(window.keys.tolist(), window.device.tolist(), strict=True)
    assert dict(zip(rows, window.bytes[:, READ].tolist(), strict=True)) == {row: added.get(row, 0) for row in new}


@given(counts)
def test_counters_that_ran_back_start_anew(found: dict[tuple[int, int], int]) -> None:
    more = {row: size + 1 for row, size in found.items()}
    window = diff(snapshot_of(more), snapshot_of(found))
    assert window.bytes[:, READ].tolist() == [found[row] for row in sorted(found)]


entries = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**12), st.integers(1, 9)), max_size=40
)


@given(entries, st.lists(st.sampled_from([0, 7, 8, -1]), min_size=6, max_size=6))
def test_the_matrix_is_summed_by_key_and_free_slots_are_left_out(
    charges: list[tuple[int, int, int, int]], slot_keys: list[int]
) -> None:
    columns = np.array(charges, dtype=np.int64).reshape(-1, 4).T
    merged = merge((columns[0], columns[1], columns[2], columns[3]), np.array(slot_keys, dtype=np.int64))
    expected: dict[tuple[int, int], list[int]] = {}
    for victim, culprit, ns, count in charges:
        pair = slot_keys[victim], slot_keys[culprit]
        if 0 not in pair:
            before = expected.setdefault(pair, [0, 0])
            expected[pair] = [before[0] + ns, before[1] + count]
    found = zip(merged.victim, merged.culprit, merged.wait_ns, merged.wait_count, strict=True)
    assert {(int(v), int(c)): [int(ns), int(n)] for v, c, ns, n in found} == expected
    assert list(zip(merged.victim, merged.culprit, strict=True)) == sorted(expected)
