from collections.abc import Callable

import pytest

from koordlet.system.errors import MalformedFile
from koordlet.system.proc import kidled, sysctl
from tests.koordlet.system.conftest import Tree
from tests.present import present


def test_a_sysctl_is_one_integer(tree: Tree) -> None:
    tree.file("proc/sys/vm/min_free_kbytes", "67584\n")
    assert sysctl.read_sysctl(tree.roots, "vm.min_free_kbytes") == 67584
    assert sysctl.read_sysctl(tree.roots, "kernel/sched_core") is None
    tree.file("proc/sys/vm/odd", "1 2\n")
    with pytest.raises(MalformedFile, match="vm/odd"):
        sysctl.read_sysctl(tree.roots, "vm.odd")


ROWS = ["csei", "dsei", "cfei", "dfei", "csui", "dsui", "cfui", "dfui", "csea", "dsea", "cfea", "dfea", "csua",
        "dsua", "cfua", "dfua", "slab"]  # fmt: skip
HEADER = [
    "# version: 1.0", "# page_scans: 24", "# slab_scans: 0", "# scan_period_in_seconds: 5", "# use_hierarchy: 1",
    "# buckets: 1,2,5,15,30,60,120,240", *["#"] * 7,
    "#   _-----=> clean/dirty ..   [1,2)  [2,5)  [5,15) ...",
]  # fmt: skip
IDLE = "\n".join([*HEADER, *(f"  {row} 1 1 1 1 1 {index} 0 1" for index, row in enumerate(ROWS))]) + "\n"


def test_cold_pages_are_counted_from_the_boundary() -> None:
    pages = kidled.parse_idle_pages(IDLE)
    assert pages.scan_period_seconds == 5
    assert pages.buckets == (1, 2, 5, 15, 30, 60, 120, 240)
    assert pages.cold_bytes() == 2 + 3 + 6 + 7 + 4
    assert pages.cold_bytes(0) == 2 + 3 + 6 + 7 + 4 + 4 * 5
    assert pages.cold_bytes(8) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (IDLE, ""),
        (
            "#\n",
            "",
        ),
        ("cfei 1", "cfei x"),
        ("seconds: 5", "seconds: five"),
        ("240", "y"),
    ],
)
def test_malformed_idle_pages_are_named(old: str, new: str) -> None:
    with pytest.raises(MalformedFile, match=r"idle_page_stats"):
        kidled.parse_idle_pages(IDLE.replace(old, new, 1))


def test_idle_pages_of_a_v1_group_are_read(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(1)
    tree.put("memory", "memory.idle_page_stats", IDLE, "a")
    assert present(tree.fs().idle_pages("a")).cold_bytes() == 22
    assert not kidled.probe(tree.roots)
