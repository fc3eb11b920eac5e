from pathlib import Path

import pytest

from koordlet.system.cgroup.tree import cgroup_id, children, walk
from koordlet.system.errors import CgroupGone


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("b/y/c2", "b/y/c1", "b/x", "a"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "b" / "cgroup.procs").write_text("")
    return tmp_path


def test_a_walk_has_parents_first_in_lexical_order(root: Path) -> None:
    assert list(walk(root)) == ["", "a", "b", "b/x", "b/y", "b/y/c1", "b/y/c2"]
    assert list(walk(root, "b/y")) == ["b/y", "b/y/c1", "b/y/c2"]
    assert list(walk(root, "none")) == []


def test_children_are_listed_in_lexical_order(root: Path) -> None:
    assert children(root, "b") == ["x", "y"]
    assert children(root, "none") == []


def test_the_id_of_an_ordinary_directory_is_its_inode(root: Path) -> None:
    assert cgroup_id(root / "a") == (root / "a").stat().st_ino


def test_a_missing_directory_has_no_id(root: Path) -> None:
    with pytest.raises(CgroupGone):
        cgroup_id(root / "none")
