"""Fixtures that tests of several koordlet packages share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.koordlet.resctrlfs import VENDORS

PROGRAM = Path(__file__).with_name("resctrlfs.py")


class MountedResctrl:
    """An emulated resctrl file system (`resctrlfs`) in its own process; `root` is the mount point."""

    def __init__(self, root: Path, vendor: str, **facts: int) -> None:
        self.root = root
        self.vendor = vendor
        self.cbm_mask = VENDORS[vendor].cbm_mask
        self.max_bandwidth = VENDORS[vendor].max_bandwidth
        arguments = [str(root), vendor, *(f"{name}={value}" for name, value in facts.items())]
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("mounted\n")

    def schemata(self, group: str = "") -> dict[str, dict[int, int]]:
        """Resource -> domain -> value, without the resources that koordlet does not set."""
        lines = (line.strip().split(":") for line in (self.root / group / "schemata").read_text().splitlines())
        values = {
            name: {
                int(domain): int(value, 16 if name == "L3" else 10)
                for domain, value in (pair.split("=") for pair in pairs.split(";"))
            }
            for name, pairs in lines
        }
        return {name: values[name] for name in ("L3", "MB")}

    def set(self, path: str, text: str) -> None:
        """Replaces the content of a file."""
        self._command("set", path, text)

    def fail(self, path: str, code: int) -> None:
        """Makes reading the file fail with this errno."""
        self._command("fail", path, code)

    def drop(self, path: str) -> None:
        """Removes a directory, as the kernel removes a domain with its last CPU."""
        self._command("drop", path)

    def counters(self, group: str, domain: int, llc: object, local: object, total: object) -> None:
        """Sets the three monitoring files of a group; newlines are added."""
        base = f"{group}/mon_data/mon_L3_{domain:02d}"
        for name, value in (("llc_occupancy", llc), ("mbm_local_bytes", local), ("mbm_total_bytes", total)):
            self.set(f"{base}/{name}", f"{value}\n")

    def close(self) -> None:
        self._process.communicate()

    def _command(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._expect("ok\n")

    def _expect(self, line: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer == line, f"the resctrl file system answered {answer!r} instead of {line!r}"


@pytest.fixture(params=sorted(VENDORS))
def resctrl_vendor(request: pytest.FixtureRequest) -> str:
    """Every test that mounts resctrl runs with the rules of each CPU vendor."""
    vendor: str = request.param
    return vendor


@pytest.fixture
def mounted_resctrl(mount_resctrl: Callable[..., MountedResctrl]) -> MountedResctrl:
    """Needs root and /dev/fuse."""
    return mount_resctrl()


@pytest.fixture
def mount_resctrl(tmp_path: Path, resctrl_vendor: str) -> Iterator[Callable[..., MountedResctrl]]:
    """Mounts one with the given facts (see `resctrlfs`). Needs root and /dev/fuse."""
    mounted: list[MountedResctrl] = []

    def mount(**facts: int) -> MountedResctrl:
        point = tmp_path / f"resctrl-{len(mounted)}"
        point.mkdir()
        mounted.append(MountedResctrl(point, resctrl_vendor, **facts))
        return mounted[-1]

    yield mount
    for resctrl in mounted:
        resctrl.close()
