"""Marks on real cgroups: written, read, kept after their owner, and different from those of other owners."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
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
NO_TREE = CgroupTree(2, {})
ME = CgroupMark.this_process("/somewhere/node", "/sys/fs/bpf/x")


@pytest.mark.parametrize(
    ("owner", "lives"),
    [
        (ME, True),
        (msgspec.structs.replace(ME, starttime=ME.starttime + 1), False),
        (msgspec.structs.replace(ME, pid=2**22 + 1), False),
        (msgspec.structs.replace(ME, boot_id="another"), False),
    ],
    ids=["this process", "its pid has another process", "no such process", "an earlier boot"],
)
def test_whether_an_owner_lives(owner: CgroupMark, lives: bool) -> None:
    assert owner.lives(NO_TREE, "kubepods") is lives


def test_an_ended_process_is_not_alive() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        owner = msgspec.structs.replace(ME, pid=process.pid, starttime=starttime(process.pid) or 0)
        assert owner.lives(NO_TREE, "kubepods")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.lives(NO_TREE, "kubepods"), "a zombie"
    assert not owner.lives(NO_TREE, "kubepods")


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.discover(Path("/sys/fs/cgroup"))


@pytest.fixture
def names(tree: CgroupTree) -> Iterator[CgroupNames]:
    names = CgroupNames(Driver.CGROUPFS, f"koord-test-{os.getpid()}-mark-{next(_serial)}")
    yield names
    assert tree.remove(names.prefix)


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
def test_an_owner_in_another_pid_namespace_lives_while_it_holds_the_lock(
    tree: CgroupTree, names: CgroupNames, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(ME, pid_namespace=1)
    holder = os.fork()
    if holder == 0:
        pods(tree, names, tmp_path, other).setup()
        signal.pause()
    try:
        for _ in range(1000):
            if tree.exists(names.root()) and other.lives(tree, names.root()):
                break
            time.sleep(0.02)
        assert other.lives(tree, names.root())
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    assert not other.lives(tree, names.root())
    assert not other.lives(tree, "no-such-group")


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
