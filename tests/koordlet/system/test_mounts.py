from pathlib import Path

import pytest

from koordlet.system.errors import MalformedFile
from koordlet.system.mounts import find_cgroup_mounts, parse_mountinfo

V1 = """\
31 23 0:28 / {root} rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / {root}/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:31 / {root}/cpuset rw master:3 propagate_from:2 - cgroup cgroup rw,cpuset
34 31 0:37 / {root}/systemd rw - cgroup cgroup rw,xattr,name=systemd
35 31 0:40 / /elsewhere/memory rw - cgroup cgroup rw,memory
"""
UNIFIED = "38 31 0:38 / {root}/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_joint_controllers_share_a_hierarchy(tmp_path: Path) -> None:
    mounts = find_cgroup_mounts(parse_mountinfo(V1.format(root=tmp_path)), tmp_path)
    joint = tmp_path / "cpu,cpuacct"
    assert dict(mounts.v1) == {"cpu": joint, "cpuacct": joint, "cpuset": tmp_path / "cpuset"}
    assert (mounts.version, mounts.unified) == (1, None)
    assert mounts.hierarchy("cpuacct") == joint
    assert mounts.hierarchy("memory") is None


def test_a_hybrid_host_is_v1_with_a_unified_tree(tmp_path: Path) -> None:
    mounts = find_cgroup_mounts(parse_mountinfo((V1 + UNIFIED).format(root=tmp_path)), tmp_path)
    assert (mounts.version, mounts.unified) == (1, tmp_path / "unified")


def test_a_cgroup2_root_is_v2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    text = f"30 23 0:27 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    mounts = find_cgroup_mounts(parse_mountinfo(text), tmp_path)
    assert (mounts.version, mounts.unified, mounts.hierarchy("memory")) == (2, tmp_path, tmp_path)


def test_directories_count_where_mountinfo_has_no_entry(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert dict(find_cgroup_mounts([], tmp_path).v1) == {"memory": tmp_path / "memory"}
    assert not find_cgroup_mounts([], tmp_path / "nothing").v1


def test_escaped_characters_are_decoded() -> None:
    (mount,) = parse_mountinfo("1 2 0:1 /a\\040b /mnt/c\\011d\\134 rw - ext4 /dev/x\\040y rw\n")
    assert (mount.root, mount.point, mount.source) == ("/a b", Path("/mnt/c\td\\"), "/dev/x y")


@pytest.mark.parametrize(
    "line", ["x 2 0:1 / / rw - ext4 a rw", "1 2 0:1 / / rw ext4 a rw", "1 2 - ext4 a rw", "1 2 0:1 / / rw - ext4"]
)
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(MalformedFile, match="mountinfo"):
        parse_mountinfo("1 2 0:1 / / rw - ext4 a rw\n" + line)
