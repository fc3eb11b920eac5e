"""Fixtures that tests of several koordlet packages share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class MountedResctrl:
    """A resctrl file system (resctrlfs.py) in a process of its own; `root` is its mount point."""

    def __init__(self, root: Path, **facts: int) -> None:
        self.root = root
        program = Path(__file__).with_name("resctrlfs.py")
        given = [f"{name}={value}" for name, value in facts.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(program), str(root), *given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._expect("mounted\n")

    def set(self, path: str, text: str) -> None:
        """The file says `text` from now on."""
        self._tell("set", path, text)

    def fail(self, path: str, code: int) -> None:
        """Reading the file fails with this errno."""
        self._tell("fail", path, code)

    def drop(self, path: str) -> None:
        """The directory goes, as a domain does with its last CPU."""
        self._tell("drop", path)

    def counters(self, group: str, domain: int, llc: object, local: object, total: object) -> None:
        """What the three monitoring files of a group say; newlines are added."""
        base = f"{group}/mon_data/mon_L3_{domain:02d}"
        for name, value in (("llc_occupancy", llc), ("mbm_local_bytes", local), ("mbm_total_bytes", total)):
            self.set(f"{base}/{name}", f"{value}\n")

    def close(self) -> None:
        self._process.communicate()

    def _tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._expect("ok\n")

    def _expect(self, line: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer == line, f"the resctrl file system says {answer!r} instead of {line!r}"


@pytest.fixture
def mounted_resctrl(tmp_path: Path) -> Iterator[MountedResctrl]:
    """Needs root and /dev/fuse."""
    point = tmp_path / "mounted-resctrl"
    point.mkdir()
    made = MountedResctrl(point)
    yield made
    made.close()


@pytest.fixture
def mount_resctrl(tmp_path: Path) -> Iterator[Callable[..., MountedResctrl]]:
    """Mounts one with facts of its own (`resctrlfs`). Needs root and /dev/fuse."""
    made: list[MountedResctrl] = []

    def mount(**facts: int) -> MountedResctrl:
        point = tmp_path / f"resctrl-{len(made)}"
        point.mkdir()
        made.append(MountedResctrl(point, **facts))
        return made[-1]

    yield mount
    for one in made:
        one.close()
