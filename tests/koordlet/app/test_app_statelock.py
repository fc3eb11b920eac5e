"""One process per state directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.app.statelock import StateLock, StateLockError

HOLD = """
import sys, time
from pathlib import Path
from koordlet.app.statelock import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_holder_is_told_the_first_ones_process(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    first, second = StateLock(directory), StateLock(directory)
    first.acquire()
    with pytest.raises(StateLockError, match=f"lock is locked: process {os.getpid()} runs with this state directory"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateLockError, match=f"process {holder.pid} "):
            StateLock(tmp_path).acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = StateLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(StateLockError, match="cannot open the lock file"):
        StateLock(tmp_path).acquire()
    assert (tmp_path / "target").read_text() == "kept"
