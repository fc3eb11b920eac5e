"""Page cache counters from the files of each kind of kernel."""

import pytest

from koordlet.system.errors import MalformedFile
from koordlet.system.proc.procfs import MemInfo
from koordlet.system.proc.workingset import WorkingSet, node_working_set, parse_working_set

LRU = {"inactive_anon": 1, "active_anon": 2, "unevictable": 4, "active_file": 8, "inactive_file": 16}


def stat(prefix: str, **more: int) -> str:
    return "".join(f"{prefix}{name} {value}\n" for name, value in {**LRU, **more}.items())


V1 = stat("", mapped_file=99) + stat("total_", mapped_file=7, shmem=3, workingset_refault_file=2)
V2 = stat("", file_mapped=7, shmem=3, workingset_refault_anon=9, workingset_refault_file=1)
KERNELS = {
    "v1, own and hierarchical lines": (1, V1, WorkingSet(31, 16, 4, 8192)),
    "v1 before 5.9": (1, stat("total_", mapped_file=7, workingset_refault=2), WorkingSet(31, 16, 7, 8192)),
    "v2": (2, V2, WorkingSet(31, 16, 4, 4096)),
    "more shared memory than mappings": (2, stat("", file_mapped=3, shmem=7), WorkingSet(31, 16, 0, 0)),
    "only the lists": (2, stat(""), WorkingSet(31, 16, 0, 0)),
}


@pytest.mark.parametrize(("version", "text", "expected"), KERNELS.values(), ids=KERNELS)
def test_memory_stat_of_each_kind_of_kernel(version: int, text: str, expected: WorkingSet) -> None:
    assert parse_working_set(text, version, 4096) == expected


@pytest.mark.parametrize("text", ["", stat("").replace("inactive_file 16", "inactive_file x"), stat("total_")])
def test_memory_stat_without_the_lru_lines_is_malformed(text: str) -> None:
    with pytest.raises(MalformedFile, match=r"memory\.stat"):
        parse_working_set(text, 2, 4096)


def test_the_working_set_of_the_node() -> None:
    values = {"Inactive(file)": 500, "Mapped": 70, "Shmem": 20}
    memory = MemInfo(1000, 300, 600, values)
    assert node_working_set(memory, {"workingset_refault_file": 2}, 10) == WorkingSet(700, 500, 50, 20)
    assert node_working_set(memory, {"workingset_refault": 3}, 10).refaulted == 30
    assert node_working_set(MemInfo(1, 0, 0, {}), {}, 10) == WorkingSet(1, 0, 0, 0)
