"""The kernel suites in a guest with Debian's 6.1 kernel and unified cgroup v2: one boot, emulated, many minutes.

What they prove there: the objects built on this machine load on another kernel, and usage, throttling, latency and
culprits are right on cgroup v2 as on v1; with the bcc variant, too. A suite that skips, runs nothing or doesn't come to
its end fails. On a quiet machine all of it takes a quarter of an hour; a suite that hangs costs its own limit
(suites.sh), and the guest as a whole is ended after TIMEOUT_S.
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
SUITES = ("sched", "stalls", "cgroups", "settings", "bcc")
TIMEOUT_S = 1800
ENDS = {"124": "its time was up", "137": "it had to be killed"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what the guest wrote: see suites.sh."""
    out = tmp_path_factory.mktemp("guest")
    # Progress goes to the terminal (with -s) or into the report: a boot alone takes most of a minute.
    command = [sys.executable, "scripts/guest.py", "--out", str(out), "--timeout", str(TIMEOUT_S), "--"]
    subprocess.run([*command, "sh", "tests/guest/suites.sh"], cwd=ROOT, env=os.environ, check=False)
    return out


@pytest.mark.parametrize("suite", SUITES)
def test_suite_passes_in_the_guest(results: Path, suite: str) -> None:
    report, ended = results / f"{suite}.xml", results / f"{suite}.end"
    assert ended.exists(), f"the guest did not come to the end of suite {suite}"
    status = ended.read_text().strip()
    assert report.exists(), f"suite {suite} left no report: {ENDS.get(status, f'pytest says {status}')}"
    totals = ElementTree.parse(report).getroot().find("testsuite")
    assert totals is not None
    bad = [
        f"{case.get('name')}: {(problem.get('message') or problem.tag)[:300]}"
        for case in totals.iter("testcase")
        for problem in case
        if problem.tag in ("failure", "error", "skipped")
    ]
    if status not in ("0", "1"):
        bad.append(f"suite {suite} is not complete: {ENDS.get(status, f'pytest says {status}')}")
    assert not bad, "\n".join(bad)
    assert int(totals.get("tests", "0")) > 0
