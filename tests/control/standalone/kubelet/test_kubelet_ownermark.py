"""Marks on real cgroups: written, read, kept after their owner, and different from those of other owners."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver
from control.standalone.kubelet.cgroups.ownermark import CgroupMark
from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.pods.spec import parse_pod
from control.standalone.kubelet.runtimes.launcher import starttime

_serial = itertools.count()
UID = "11111111-2222-3333-4444-555555555555"
ME = CgroupMark.this_process("/somewhere/node", "/sys/fs/bpf/x")


@pytest.mark.parametrize(
    ("owner", "may_live"),
    [
        (ME, True),
        (msgspec.structs.replace(ME, starttime=ME.starttime + 1), False),
        (msgspec.structs.replace(ME, pid=2**22 + 1), False),
        (msgspec.structs.replace(ME, boot_id="another"), False),
        (msgspec.structs.replace(ME, pid=2**22 + 1, pid_namespace=1), True),
    ],
    ids=["ourselves", "its pid has another process", "no such process", "an earlier boot", "unseen from here"],
)
def test_whether_an_owner_may_be_alive(owner: CgroupMark, may_live: bool) -> None:
    assert owner.may_live() is may_live


def test_an_ended_process_is_not_alive() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        owner = msgspec.structs.replace(ME, pid=process.pid, starttime=starttime(process.pid) or 0)
        assert owner.may_live()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.may_live(), "a zombie"
    assert not owner.may_live()


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.discover(Path("/sys/fs/cgroup"))


@pytest.fixture
def names(tree: CgroupTree) -> Iterator[CgroupNames]:
    made = CgroupNames(Driver.CGROUPFS, f"koord-test-{os.getpid()}-mark-{next(_serial)}")
    yield made
    assert tree.remove(made.prefix)


def pods(tree: CgroupTree, names: CgroupNames, folder: Path, owner: CgroupMark | None) -> PodCgroups:
    return PodCgroups(tree, names, folder / "cgroups.json", 1000, 1 << 30, False, owner)


POD = parse_pod(
    {
        "metadata": {"name": "web", "namespace": "default", "uid": UID},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
)


@pytest.mark.kernel
def test_created_cgroups_are_marked(tree: CgroupTree, names: CgroupNames, tmp_path: Path) -> None:
    cgroups = pods(tree, names, tmp_path, ME)
    cgroups.setup()
    for path in (names.prefix, names.root(), cgroups.ensure_pod(POD)):
        assert ownermark.read(tree, path) == ME
    later = msgspec.structs.replace(ME, pid=1)
    pods(tree, names, tmp_path, later).setup()
    assert ownermark.read(tree, names.root()) == later


@pytest.mark.kernel
def test_existing_cgroups_and_those_without_owner_are_not_marked(
    tree: CgroupTree, names: CgroupNames, tmp_path: Path
) -> None:
    pods(tree, names, tmp_path, None).setup()
    (tmp_path / "cgroups.json").unlink()
    cgroups = pods(tree, names, tmp_path, ME)
    cgroups.setup()
    assert ownermark.read(tree, names.root()) is None
    assert ownermark.read(tree, "no-such-group") is None
    directory = tree.dirs(names.root())[0]
    os.setxattr(directory, ownermark.ATTRIBUTE, b"not ours")
    assert ownermark.read(tree, names.root()) is None


@pytest.mark.kernel
def test_pods_of_other_kubelets_are_foreign_groups(tree: CgroupTree, names: CgroupNames, tmp_path: Path) -> None:
    cgroups = pods(tree, names, tmp_path, ME)
    cgroups.setup()
    tree.create(f"{cgroups.ensure_pod(POD)}/container")
    half_made = f"{names.root()}/podkilled-before-the-mark"
    tree.create(half_made)
    assert ownermark.foreign_groups(tree, names, ME.state_dir) == []
    assert ownermark.foreign_groups(tree, names, "/another") == [cgroups.pod_dir(POD)]
    tree.create(f"{half_made}/container")
    assert ownermark.foreign_groups(tree, names, ME.state_dir) == [half_made]
