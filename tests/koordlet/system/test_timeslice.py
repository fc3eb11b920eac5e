"""koordlet's time slice, on the real kernel."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading

import pytest

from koordlet.system.cpu import timeslice

MAIN = """
import sys
import koordlet.command as binary
from koordlet.system.cpu import timeslice
def run(start):
    start.close()
    print(timeslice.current())
    return 0
binary.run = run
sys.argv = ["koordlet", "--standalone", "--node-name=own"]
sys.exit(binary.main())
"""


def _in_a_thread(act: object) -> list[object]:
    """The results of calls in a new thread, whose slice ends with it."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.extend(act()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return results


def _release() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int(minor)


def test_linux_6_12_accepts_a_slice_and_older_kernels_are_a_condition() -> None:
    before = timeslice.current()
    shortened, now = _in_a_thread(lambda: (timeslice.shorten(), timeslice.current()))
    assert bool(shortened) is (_release() >= (6, 12))
    assert now == (timeslice.SHORTEST_NS if shortened else before)
    assert bool(shortened) or "slices" in shortened.reason  # type: ignore[attr-defined]
    assert timeslice.current() == before


def test_niceness_and_policy_stay_and_threads_inherit_the_slice() -> None:
    def act() -> list[object]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 12)
        shortened = timeslice.shorten()
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        (child,) = _in_a_thread(lambda: [timeslice.current()])
        return [shortened, nice, os.sched_getscheduler(0), child, timeslice.current()]

    _, nice, policy, child, own = _in_a_thread(act)
    assert (nice, policy) == (12, os.SCHED_OTHER)
    assert child == own


def test_a_real_time_thread_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeslice, "_read", lambda: (48, os.SCHED_FIFO, 0, 0, 50, 0, 0, 0))
    assert not timeslice.shorten()


def test_an_unknown_architecture_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "riscv64" in timeslice.shorten().reason


def test_the_binary_sets_the_slice_before_it_starts_anything() -> None:
    done = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout.split()[-1]) == (timeslice.SHORTEST_NS if _release() >= (6, 12) else 0)
