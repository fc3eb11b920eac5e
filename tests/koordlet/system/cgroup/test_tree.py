import pytest

from koordlet.system.cgroup import CgroupGone, at_depth, cgroup_id, children, walk


@pytest.fixture
def root(tmp_path):
    for path in ("b/y/c2", "b/y/c1", "b/x", "a"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "b" / "cgroup.procs").write_text("")
    return tmp_path


def test_walk_is_parents_first_and_lexical(root):
    assert list(walk(root)) == ["", "a", "b", "b/x", "b/y", "b/y/c1", "b/y/c2"]
    assert list(walk(root, "b", 1)) == ["b", "b/x", "b/y"]
    assert list(walk(root, "none")) == []


def test_exact_depth(root):
    assert at_depth(root, "b", 1) == ["b/x", "b/y"]
    assert at_depth(root, "b", 2) == ["b/y/c1", "b/y/c2"]
    assert at_depth(root, "", 1) == ["a", "b"]


def test_children(root):
    assert children(root, "b") == ["x", "y"]
    assert children(root, "none") == []


def test_id_of_an_ordinary_directory_is_its_inode(root):
    assert cgroup_id(root / "a") == (root / "a").stat().st_ino


def test_id_of_nothing(root):
    with pytest.raises(CgroupGone):
        cgroup_id(root / "none")
