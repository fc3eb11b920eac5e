"""The tests that tests/guest/suites.py names exist: in the guest, a missing name would end its whole suite."""

from __future__ import annotations

import subprocess
import sys

from tests.guest.suites import SUITES
from tests.repository.sources import ROOT


def test_every_test_of_the_guest_can_be_collected() -> None:
    tests = [test for suite in SUITES.values() for test in suite.tests]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
