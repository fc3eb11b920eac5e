"""The tests that tests/guest/suites.sh names exist: in the guest, a missing name would end its whole suite."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.repository.sources import ROOT


def test_every_test_of_the_guest_can_be_collected() -> None:
    script = (ROOT / "tests/guest/suites.sh").read_text()
    variables = {"T": "tests/koordlet"}
    for name, value in re.findall(r"^(\w+)=(\$T/\S+)$", script, re.MULTILINE):
        variables[name] = value.replace("$T", variables["T"])
    arguments = re.findall(r'(\$(?:T|\w+)(?:/|::)[^\s"\\]+)', script.split('echo "guest: $(uname', 1)[1])
    tests = [re.sub(r"^\$(\w+)", lambda match: variables[match[1]], argument) for argument in arguments]
    tests = [test for test in tests if test.startswith("tests/")]
    assert len(tests) > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
