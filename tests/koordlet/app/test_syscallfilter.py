"""The seccomp filter of koordlet's process: its numbers, what it refuses on this kernel, and where it is installed."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.app.syscallfilter import REFUSED, program

HEADERS = {"x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
           "aarch64": Path("/usr/include/asm-generic/unistd.h")}  # fmt: skip
"""Of the kernel's interface. An x86-64 machine has both; others have the generic one."""
TRIES = """
import ctypes, errno, json, os, subprocess, sys, threading
from koordlet.app.syscallfilter import REFUSED, refuse_unused
libc = ctypes.CDLL(None, use_errno=True)
done, results = threading.Event(), {}
def attempt(number):
    ctypes.set_errno(0)
    return libc.syscall(number, -1, -1, -1, -1, -1, -1), ctypes.get_errno()
def other():
    done.wait()
    results["thread"] = attempt(REFUSED["setns"].x86_64 if sys.argv[1] == "x86_64" else REFUSED["setns"].aarch64)
thread = threading.Thread(target=other)
thread.start()
results["installed"] = refuse_unused()
done.set()
thread.join()
for name, numbers in REFUSED.items():
    if getattr(numbers, sys.argv[1]) is not None:
        results[name] = attempt(getattr(numbers, sys.argv[1]))
results["child"] = subprocess.run(["true"]).returncode
print(json.dumps(results))
"""
EPERM = [-1, 1]


@pytest.mark.parametrize("machine", HEADERS if platform.machine() == "x86_64" else ["aarch64"])
@pytest.mark.kernel  # has the headers of the kernel's interface
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    text = HEADERS[machine].read_text()
    for name, numbers in REFUSED.items():
        match = re.search(rf"#define __NR_{name}\s+(\d+)", text)
        assert (int(match[1]) if match else None) == getattr(numbers, machine), name


@pytest.mark.kernel
def test_unused_system_calls_are_refused_in_all_threads() -> None:
    """With arguments for which the kernel itself has another error than EPERM, or the call needs a right."""
    done = subprocess.run(
        [sys.executable, "-c", TRIES, platform.machine()], capture_output=True, text=True, timeout=120, check=True
    )
    results = json.loads(done.stdout)
    assert (results.pop("installed"), results.pop("child")) == (True, 0)
    assert {name for name, result in results.items() if result != EPERM} == set()
    assert len(results) > 25


def test_calls_of_other_architectures_are_refused() -> None:
    """The first comparison is that of the architecture; what is unequal jumps to the last instruction."""
    for machine in HEADERS:
        steps = [program(machine)[at : at + 8] for at in range(0, len(program(machine)), 8)]
        assert 2 + steps[1][3] == len(steps) - 1
        assert 4 + steps[3][2] == len(steps) - 1, "x32"
