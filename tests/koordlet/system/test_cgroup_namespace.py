"""The cgroups of other processes, seen from a container's cgroup namespace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from koordlet.system.cgroup.namespace import absolute

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("directory", ["", "kubepods/pod1/main", "..hidden/x"])
def test_other_paths_are_not_changed(directory: str, tmp_path: Path) -> None:
    assert absolute(directory, tmp_path, tmp_path / "missing") == directory


def test_relative_paths_are_resolved_at_the_own_group(tmp_path: Path) -> None:
    own = tmp_path / "tree/kubepods/pod0/koordlet"
    own.mkdir(parents=True)
    assert absolute("../../pod1/main", tmp_path / "tree", own) == "kubepods/pod1/main"
    assert absolute("../../..", tmp_path / "tree", own) == "."
    assert absolute("../../pod1/main", tmp_path / "tree", tmp_path) is None


@contextmanager
def groups(tree: Path) -> Iterator[Path]:
    """A new group with the groups `koordlet` and `pod1/main`."""
    top = tree / "koord-namespace-test"
    paths = [top, top / "koordlet", top / "pod1", top / "pod1/main"]
    for group in paths:
        group.mkdir()
    try:
        yield top
    finally:
        for group in reversed(paths):
            group.rmdir()


@pytest.mark.kernel
def test_the_kernels_paths_are_resolved() -> None:
    tree = Path("/sys/fs/cgroup/unified")
    tree = tree if tree.is_dir() else tree.parent
    code = (
        "import sys; from pathlib import Path; from koordlet.system.cgroup.namespace import absolute;"
        "lines = Path('/proc', sys.argv[1], 'cgroup').read_text().splitlines();"
        "shown = next(line for line in lines if line.startswith('0::'))[4:];"
        "print(shown, absolute(shown, Path(sys.argv[2]), Path('/mnt')))"
    )
    enter = 'echo $$ >"$0/koordlet/cgroup.procs"; exec unshare --cgroup --mount sh -ec "$1" sh "$2" "$3" "$4" "$5"'
    inside = 'mount -t cgroup2 none /mnt; exec "$1" -c "$2" "$3" "$4"'
    with groups(tree) as top:
        sleeper = subprocess.Popen(["sh", "-c", 'echo $$ >"$0/pod1/main/cgroup.procs"; exec sleep 600', str(top)])
        try:
            while str(sleeper.pid) not in (top / "pod1/main/cgroup.procs").read_text().split():
                assert sleeper.poll() is None
            done = subprocess.run(
                ["sh", "-ec", enter, str(top), inside, sys.executable, code, str(sleeper.pid), str(tree)],
                capture_output=True, text=True, check=True, cwd=ROOT,
            )  # fmt: skip
        finally:
            sleeper.kill()
            sleeper.wait()
    assert done.stdout.split() == ["../pod1/main", "koord-namespace-test/pod1/main"], done
