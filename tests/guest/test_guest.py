"""The kernel suites in a guest with Debian's 6.1 kernel and unified cgroup v2, or in one that KOORD_GUEST names:
emulated, many minutes.

They show that objects built on this machine load on another kernel, and that usage, throttling, latency and culprits
are right on cgroup v2 as on v1, also with the bcc variant. A suite that skips a test, runs no test or does not finish
fails. On a quiet machine all suites take a quarter of an hour; each has a time limit (suites.py), and the guest is
stopped after a time. If the emulated kernel hangs or ends early, it is booted again for the remaining suites, and
the output reports that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.guest, pytest.mark.timeout(0)]  # the guest's time is the limit here

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Guest:
    """How a guest is started, and what it runs."""

    program: tuple[str, ...]
    suites: tuple[str, ...]
    timeout_s: float
    python: str = "python"


GUESTS = {
    "amd64": Guest(("scripts/guest.py",), ("sched", "stalls", "cgroups", "confined", "bcc", "node-stalls"), 2600),
    # Without the suites that need AppArmor or compile in the guest.
    "arm64": Guest(
        ("-m", "scripts.guestarm64"), ("sched", "stalls", "cgroups", "unconfined", "node-stalls"), 5400, "python3"
    ),
    # What depends on core scheduling and sched_ext.
    "sched": Guest(("-m", "scripts.guestsched"), ("sched", "core-sched", "sched-ext"), 3600),
}
GUEST = GUESTS[os.environ.get("KOORD_GUEST", "amd64")]
"""`make test-arm64` and `make test-sched` name theirs."""
BOOTS = 2
TIMED_OUT = 124
PYTHON_CACHE = ROOT / "build" / "guest" / "pycache"
ENDS = {"124": "its time was up", "137": "it had to be killed"}


def left(results: Path) -> list[str]:
    """Suites that did not come to their end."""
    return [suite for suite in GUEST.suites if not (results / f"{suite}.end").exists()]


def compile_for_the_guest() -> None:
    """What the suites import, compiled here: the guest takes minutes for it."""
    collect = [sys.executable, "-m", "pytest", "-m", "kernel", "--collect-only", "-qq", "tests/koordlet"]
    places = {"PYTHONPYCACHEPREFIX": os.fspath(PYTHON_CACHE), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(collect, cwd=ROOT, env=os.environ | places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what the guest wrote: see suites.py."""
    out = tmp_path_factory.mktemp("guest")
    compile_for_the_guest()
    until = time.monotonic() + GUEST.timeout_s
    for boot in range(BOOTS):
        # Progress goes to the terminal (with -s) or into the report: a boot alone takes most of a minute.
        limit = str(until - time.monotonic())
        command = [sys.executable, *GUEST.program, "--out", os.fspath(out), "--timeout", limit, "--"]
        status = subprocess.run(
            [*command, GUEST.python, "-m", "tests.guest.suites", *left(out)], cwd=ROOT, check=False
        ).returncode
        if not left(out) or status == TIMED_OUT:
            break
        log = out / "kernel.log"
        print(f"guest: boot {boot + 1} ended ({status}) before {left(out)}; the kernel's last lines:", flush=True)
        print("\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else "none", flush=True)
    return out


@pytest.mark.parametrize("suite", GUEST.suites)
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
