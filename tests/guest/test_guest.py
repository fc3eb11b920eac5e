"""The kernel suites in a guest with Debian's 6.1 kernel and unified cgroup v2: one boot, emulated, many minutes.

What they prove there: the objects built on this machine load on another kernel, and usage, throttling, latency and
culprits are right on cgroup v2 as on v1; with the bcc variant, too. A suite that skips or runs nothing fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("kernel", "bcc")
TIMEOUT_S = 2400


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the JUnit files that the guest wrote."""
    out = tmp_path_factory.mktemp("guest")
    # Progress goes to the terminal (with -s) or into the report: a boot alone takes most of a minute.
    command = [sys.executable, "scripts/guest.py", "--out", str(out), "--timeout", str(TIMEOUT_S), "--"]
    subprocess.run([*command, "sh", "tests/guest/suites.sh"], cwd=ROOT, env=os.environ, check=False)
    return out


@pytest.mark.parametrize("suite", SUITES)
def test_suite_passes_in_the_guest(results: Path, suite: str) -> None:
    report = results / f"{suite}.xml"
    assert report.exists(), f"the guest did not get to suite {suite}"
    totals = ElementTree.parse(report).getroot().find("testsuite")
    assert totals is not None
    bad = [
        f"{case.get('name')}: {(problem.get('message') or problem.tag)[:300]}"
        for case in totals.iter("testcase")
        for problem in case
        if problem.tag in ("failure", "error", "skipped")
    ]
    assert not bad, "\n".join(bad)
    assert int(totals.get("tests", "0")) > 0
