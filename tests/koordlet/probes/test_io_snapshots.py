"""The block-I/O and network probes without a kernel: files, ids, windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes.blockio.files import BlockFiles, counts_only
from koordlet.probes.blockio.snapshot import DISCARD, READ, WRITE, BlockIOSnapshot, diff
from koordlet.probes.culprits.owners import BLKIO, MAX_NAMESPACE_RETRY_S, NETNS, SPECIAL, TASK, OwnerIds, owner_tag
from koordlet.probes.culprits.slots import special_key
from koordlet.system.cgroup import members
from koordlet.system.cgroup.blockio import DiskUse, parse_blkio, parse_io_stat
from koordlet.system.devices.blockdev import device_name, device_number
from koordlet.system.proc.netns import parse_retransmits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=512 dios=2\n", {"8:0": DiskUse([4096, 0, 512], [1, 0, 2])}),
        (
            "8:0 rbytes=1 new=7\n259:3 wios=5\n",
            {"8:0": DiskUse([1, 0, 0], [0] * 3), "259:3": DiskUse([0] * 3, [0, 5, 0])},
        ),
    ],
    ids=["empty", "all keys", "unknown keys"],
)
def test_io_stat(text: str, expected: dict[str, DiskUse]) -> None:
    assert parse_io_stat(text) == {device_number(name): use for name, use in expected.items()}


def test_blkio_files() -> None:
    use = parse_blkio(
        "7:0 Read 100\n7:0 Write 20\n7:0 Sync 3\n7:0 Discard 9\n7:0 Total 120\nTotal 120\n", "7:0 Read 2\n"
    )
    assert use == {device_number("7:0"): DiskUse([100, 20, 9], [2, 0, 0])}
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
    assert parse_retransmits(text) == expected


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
    tags = np.array([owner_tag(space, inode(root / named))], dtype=np.int64)
    assert ids.translate(tags).tolist() == [inode(root / expected)]


def test_special_and_unknown_owners_are_unchanged(trees: tuple[OwnerIds, Path]) -> None:
    ids, _ = trees
    unknown = owner_tag(BLKIO, 12345678901)
    tags = np.array([owner_tag(SPECIAL, 2), -10, 0, unknown], dtype=np.int64)
    assert ids.translate(tags).tolist() == [special_key(2), -10, 0, unknown]


def test_a_namespace_whose_cgroup_was_removed_is_vacated(trees: tuple[OwnerIds, Path]) -> None:
    ids, root = trees
    lone = owner_tag(NETNS, inode(root / "ns/lone"))
    tags = np.array([lone], dtype=np.int64)
    ids.translate(tags)
    assert ids.take_vacated() == []
    (root / "cpu/lone/cgroup.procs").unlink()
    (root / "cpu/lone").rmdir()
    assert ids.take_vacated() == [lone]
    (root / "cpu/pod/two/cgroup.procs").write_text("13\n")
    assert ids.translate(tags).tolist() == [inode(root / "cpu/pod/two")]


def test_an_unknown_id_is_searched_for_less_and_less_often(trees: tuple[OwnerIds, Path]) -> None:
    _, root = trees
    now, searches = 0.0, []

    class Counted(OwnerIds):
        def _paths(self, space: int, unknown: set[int]) -> dict[int, int]:
            searches.append(now)
            return super()._paths(space, unknown)

    ids = Counted(root / "cpu", {BLKIO: root / "blkio"}, root / "proc", clock=lambda: now)
    unknown = owner_tag(BLKIO, 12345678901)
    for second in range(400):
        now = float(second)
        ids.translate(np.array([unknown], dtype=np.int64))
    assert searches == [0, 2, 6, 14, 30, 62, 126, 190, 254, 318, 382]
    newcomer = owner_tag(BLKIO, inode(root / "blkio/pod/one"))
    assert ids.translate(np.array([unknown, newcomer])).tolist() == [unknown, inode(root / "cpu/pod/one")]
    ids.translate(np.array([unknown]), walk=True)
    assert searches[-2:] == [399, 399]


def test_a_reused_namespace_number_is_found_soon(trees: tuple[OwnerIds, Path]) -> None:
    _, root = trees
    now = 0.0
    ids = OwnerIds(root / "cpu", {}, root / "proc", clock=lambda: now)
    (root / "cpu/lone/cgroup.procs").write_text("")
    tag = np.array([owner_tag(NETNS, inode(root / "ns/lone"))])
    for second in range(60):  # its pod is gone; its counters are not yet
        now = float(second)
        assert ids.translate(tag).tolist() == tag.tolist()
    (root / "cpu/late").mkdir()
    (root / "cpu/late/cgroup.procs").write_text("13\n")
    now += MAX_NAMESPACE_RETRY_S
    assert ids.translate(tag).tolist() == [inode(root / "cpu/late")]


def test_cgroups_are_asked_for_their_namespace_less_and_less_often(
    trees: tuple[OwnerIds, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root = trees
    now = 0.0
    questions: list[str] = []
    read = members.first_processes

    def counted(path: str, limit: int) -> list[int]:
        questions.append(path)
        return read(path, limit)

    monkeypatch.setattr(members, "first_processes", counted)
    ids = OwnerIds(root / "cpu", {}, root / "proc", clock=lambda: now)
    for second in range(0, 64, 2):  # one more namespace every two seconds, none of which any cgroup has
        now = float(second)
        ids.translate(np.array([owner_tag(NETNS, 10**9 + number) for number in range(min(second, 18) + 1)]))
        if second == 18:
            questions.clear()
    times = questions.count(f"{root}/cpu/pod/one")
    assert times <= 3
    (root / "cpu/late").mkdir()
    (root / "cpu/late/cgroup.procs").write_text("13\n")
    (root / "cpu/lone/cgroup.procs").write_text("")
    now += 2
    tag = np.array([owner_tag(NETNS, inode(root / "ns/lone"))])
    assert ids.translate(tag, walk=True).tolist() == [inode(root / "cpu/late")], "a new cgroup is asked at once"
    assert questions.count(f"{root}/cpu/pod/one") == times + 1, "all are asked by a search that must not miss any"


counts = st.dictionaries(st.tuples(st.integers(1, 5), st.integers(0, 2)), st.integers(1, 10**9), max_size=8)


def snapshot_of(sizes: dict[tuple[int, int], int]) -> BlockIOSnapshot:
    return counts_only({row: DiskUse([size, 0, 0], [1, 0, 0]) for row, size in sizes.items()})


@given(counts, counts)
def test_a_window_is_what_was_added(old: dict[tuple[int, int], int], added: dict[tuple[int, int], int]) -> None:
    new = {row: old.get(row, 0) + added.get(row, 0) for row in old | added}
    window = diff(snapshot_of(old), snapshot_of(new))
    rows = zip(window.keys.tolist(), window.device.tolist(), strict=True)
    assert dict(zip(rows, window.bytes[:, READ].tolist(), strict=True)) == {row: added.get(row, 0) for row in new}


@given(counts)
def test_counters_that_ran_back_count_from_zero(sizes: dict[tuple[int, int], int]) -> None:
    more = {row: size + 1 for row, size in sizes.items()}
    window = diff(snapshot_of(more), snapshot_of(sizes))
    assert window.bytes[:, READ].tolist() == [sizes[row] for row in sorted(sizes)]
