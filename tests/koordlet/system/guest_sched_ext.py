"""The scheduler that suite `sched-ext` registered still has all tasks: the kernel removes one that lets a task wait for
too long, and the suite's other tests would then have shown nothing.
"""

from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

STATE = Path("/sys/kernel/sched_ext")


def test_the_scheduler_was_there_all_the_time() -> None:
    assert (STATE / "state").read_text() == "enabled\n"
    assert (STATE / "root/ops").read_text() == "fifo\n"
    assert (STATE / "enable_seq").read_text() == "1\n"
    assert (STATE / "switch_all").read_text() == "1\n"
