import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cpu import perf
from koordlet.system.cpu.perf import CgroupCounters, PerfError, PerfEvent, PerfUnavailable, parse_group
from koordlet.system.host import Host
from tests.conftest import ChildCgroup
from tests.present import present

PERF_TYPE_SOFTWARE = 1
TASK_CLOCK = PerfEvent("task", PERF_TYPE_SOFTWARE, 1)
CONTEXT_SWITCHES = PerfEvent("switches", PERF_TYPE_SOFTWARE, 3)


@pytest.mark.parametrize(
    ("enabled", "running", "scaled"),
    [(100, 50, [20.0, 8.0]), (100, 100, [10.0, 4.0]), (0, 0, [10.0, 4.0]), (7, 0, [10.0, 4.0])],
)
def test_counts_are_scaled_by_the_time_they_ran(enabled: int, running: int, scaled: list[float]) -> None:
    assert parse_group(struct.pack("=QQQQQ", 2, enabled, running, 10, 4)) == scaled


@pytest.mark.parametrize("data", [b"", b"x" * 23, struct.pack("=QQQ", 2, 1, 1)])
def test_a_read_of_unexpected_size_is_an_error(data: bytes) -> None:
    with pytest.raises(PerfError):
        parse_group(data)


def test_unknown_architecture_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf.platform, "machine", lambda: "vax")  # type: ignore[attr-defined]
    assert "vax" in perf.probe().reason


def test_a_missing_directory_is_an_error() -> None:
    with pytest.raises(PerfError, match="/nonexistent"):
        CgroupCounters("/nonexistent", [0])


def descriptors() -> Any:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.kernel
def test_software_events_of_a_cgroup_are_counted(
    kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup], burner: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    before = descriptors()
    events = (TASK_CLOCK, CONTEXT_SWITCHES)
    cpus = kernel_host.facts.online_cpus
    with CgroupCounters(kernel_fs.perf_dir(child.dir), cpus, events) as counters:
        idle = counters.read()
        burner(child)
        end = time.monotonic() + 60
        while (busy := counters.read())["task"] <= 10_000_000:
            assert time.monotonic() < end, "nothing was counted"
            time.sleep(0.02)
    assert idle == {"task": 0.0, "switches": 0.0}
    assert set(busy) == set(idle)
    assert descriptors() - before == 2, "only the burner's two pipes stay open"


@pytest.mark.kernel
def test_missing_hardware_raises_its_own_error_and_leaks_nothing(
    kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup]
) -> None:
    directory = kernel_fs.perf_dir(cgroup_child().dir)
    cpus = kernel_host.facts.online_cpus
    before = descriptors()
    if kernel_host.facts.has("perf_hardware"):
        with CgroupCounters(directory, cpus) as counters:
            assert set(counters.read()) == {"cycles", "instructions"}
    else:
        with pytest.raises(PerfUnavailable) as caught:
            CgroupCounters(directory, cpus)
        assert caught.value.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)
        assert kernel_host.facts.reasons()["perf_hardware"]
    assert descriptors() == before


@pytest.mark.kernel
def test_a_failure_after_the_first_cpu_closes_the_opened_descriptors(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]
) -> None:
    directory = kernel_fs.perf_dir(cgroup_child().dir)
    before = descriptors()
    with pytest.raises(PerfError):
        CgroupCounters(directory, [0, present(os.cpu_count()) + 4096], (TASK_CLOCK,))
    assert descriptors() == before
