from pathlib import Path

import pytest

from koordlet.system.cgroup.tree import RepeatedWalk, cgroup_id, children, walk, walk_ids
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


def test_a_repeated_walk_follows_every_change_of_the_tree(root: Path) -> None:
    repeated = RepeatedWalk(root)

    def agrees() -> bool:
        return list(repeated.walk_ids()) == list(walk_ids(root))

    assert [path for path, _ in repeated.walk_ids()] == list(walk(root))
    assert agrees()
    (root / "b/y/c1").rmdir()
    assert agrees()
    (root / "b/y/c3").mkdir()
    (root / "b/y/c2").rmdir()  # as many children as before
    assert agrees()
    (root / "a/deep/er").mkdir(parents=True)
    assert agrees()
    (root / "b/x").rename(root / "b/z")
    assert agrees()
    (root / "b/x").mkdir()
    (root / "b/x/y").mkdir()  # the name of a directory that had no children
    assert agrees()


def test_a_repeated_walk_of_a_missing_tree_is_empty_until_it_exists(tmp_path: Path) -> None:
    repeated = RepeatedWalk(tmp_path / "none")
    assert list(repeated.walk_ids()) == []
    (tmp_path / "none/child").mkdir(parents=True)
    assert [path for path, _ in repeated.walk_ids()] == ["", "child"]


def test_a_repeated_walk_does_not_list_a_directory_that_is_unchanged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def counted(base: Path | str, directory: str = "") -> list[str]:
        listed.append(directory)
        return children(base, directory)

    monkeypatch.setattr("koordlet.system.cgroup.tree.children", counted)
    repeated = RepeatedWalk(root)
    list(repeated.walk_ids())
    listed.clear()
    list(repeated.walk_ids())
    assert listed == []
    (root / "b/y/c3").mkdir()
    list(repeated.walk_ids())
    assert listed == ["b/y"]
