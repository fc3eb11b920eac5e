"""All attackers of the threat model at once, for some seconds: none of them gains anything (docs/security.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.evidence import Evidence, differences

ROOT = Path(__file__).resolve().parents[2]


def groups() -> set[Path]:
    """Cgroups of such runs, in every hierarchy."""
    root = Path("/sys/fs/cgroup")
    return {*root.glob("koord-hostile-*"), *root.glob("*/koord-hostile-*")}


@pytest.mark.e2e
@pytest.mark.kernel
def test_no_attacker_gains_anything() -> None:
    before = groups()
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "--seconds", "5"],
        cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5000:]}"
    assert all(f"| {name} |" in done.stdout for name in ATTACKS), done.stdout
    assert "Cgroup values, objects of others, processes: unchanged" in done.stdout
    assert groups() == before, "everything is removed"


def test_a_changed_value_a_lost_process_and_a_written_file_are_noticed() -> None:
    before = Evidence({"service pod cpu.shares": "51"}, {"secret": "as before"}, {"a": frozenset("0")}, {"koordlet": 1})
    after = Evidence(
        {"service pod cpu.shares": "2"}, {"secret": "as before"}, {"a": frozenset("0")}, {"koordlet": 2}, "x"
    )
    assert differences(before, before) == []
    assert differences(before, after) == [
        "service pod cpu.shares: 51 -> 2",
        "koordlet: 1 -> 2",
        "the file outside the cgroup tree: x",
    ]
