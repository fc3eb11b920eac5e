"""Runs inside the guest: the kernel tests that must also pass on cgroup v2 and another kernel.

    python -m tests.guest.suites NAME ...

tests/guest/test_guest.py calls it through scripts/guest.py. Each suite writes NAME.xml (JUnit) and NAME.end (pytest's
exit status; 124 after its time limit) to $GUEST_OUT. A suite that hangs is interrupted after its limit with a
traceback, and the next suite begins. Every suite is a fork of this process, which has imported the tests of all: that
takes most of a minute on emulated CPUs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.koordlet.process.view import APPARMOR

TIMED_OUT: Final = 124
KILL_AFTER_S: Final = 60.0
"""Time for pytest's report after the interrupt."""
T: Final = "tests/koordlet"
EVERY: Final = f"{T}/process/test_every_setting.py"
LATENCY: Final = f"{T}/probes/test_sched_latency_kernel.py"
LIFECYCLE: Final = f"{T}/probes/test_probe_lifecycle_kernel.py"


@dataclass(frozen=True)
class Suite:
    limit_s: float
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    """A command that runs before."""


ONE_DRIVER: Final = ("-k", "not cgroupfs")
"""Of names: on cgroup v2 it is nearly always systemd's, and names are the same on both."""
NO_QUOTAS: Final = ("-k", "not cgroupfs and not quota and not throttle")
SUITES: Final = {
    "sched": Suite(
        650,
        (
            LATENCY,
            # Of the loader what depends on the kernel's programs and links. The rest is the same everywhere.
            f"{LIFECYCLE}::test_a_killed_loader_loses_no_count",
            f"{LIFECYCLE}::test_a_loader_killed_half_way_is_finished_by_the_next",
            f"{LIFECYCLE}::test_full_tables_report_what_they_lose",
        ),
    ),
    "stalls": Suite(
        650,
        (
            f"{T}/probes/guest_mem_stall.py",
            f"{T}/probes/guest_swapin.py",
            f"{T}/probes/test_mem_stall_kernel.py",
            f"{T}/probes/test_block_io_kernel.py",
            f"{T}/probes/test_net_stall_kernel.py",
        ),
    ),
    "cgroups": Suite(
        650,
        (
            f"{T}/probes/test_cgroup_stats_kernel.py",
            f"{T}/system/test_kernel_cgroups.py",
            f"{T}/system/test_host.py",
            f"{T}/system/cgroup/test_tree.py",
            f"{T}/system/test_storage.py",
            f"{T}/statesinformer/test_pleg.py",
            f"{T}/runtimehooks/test_cpu_sets_kernel.py",
            f"{T}/resourceexecutor/test_block_settings_kernel.py",
            f"{T}/qosmanager/guest_memory.py",
        ),
        options=ONE_DRIVER,
        # This machine has no device-mapper: the guest alone shows volumes.
        prepare=("modprobe", "-a", "loop", "dm_mod"),
    ),
    # koordlet under its AppArmor profile: what the profile refuses, all figures, and every file of every group with all
    # features on, a reserved CPU, and after a stop. A profile only refuses: what works under it works without it.
    "confined": Suite(
        900,
        (
            f"{T}/process/guest_apparmor.py",
            f"{T}/process/test_koordlet_figures.py",
            f"{EVERY}::test_every_file_of_every_group_has_the_value_of_the_table[reserved-cpu]",
            f"{EVERY}::test_a_stop_leaves_what_the_kubelet_had_set",
        ),
        options=ONE_DRIVER,
        environment={APPARMOR: "koordlet"},
        prepare=("apparmor_parser", "-r", "-K", "-I", "tests/guest", "deploy/koordlet-apparmor/koordlet"),
    ),
    # The same without a profile, for kernels without AppArmor.
    "unconfined": Suite(
        650,
        (f"{T}/process/test_koordlet_figures.py", f"{EVERY}::test_a_stop_leaves_what_the_kubelet_had_set"),
        options=ONE_DRIVER,
    ),
    # Compiling takes minutes here; then the tests that hold the other variant to the kernel's own figures.
    "bcc": Suite(
        450,
        (
            f"{LATENCY}::test_noisy_neighbour_is_named_and_the_wait_is_the_kernels",
            f"{LATENCY}::test_all_waiting_is_charged_to_a_culprit",
            f"{LATENCY}::test_quota_throttling_is_not_contention",
            f"{LATENCY}::test_a_sleepers_waits_are_the_kernels_and_idle_cpus_are_culprits",
            f"{LATENCY}::test_waiting_survives_a_move_to_another_cpu",
        ),
        environment={"KOORD_TEST_PROBES": "bcc"},
    ),
    # With core scheduling and CPUs that are siblings.
    "core-sched": Suite(
        650,
        (
            f"{T}/system/test_coresched.py::test_cookies_of_this_kernel",
            f"{T}/resourceexecutor/guest_cookies.py",
            f"{T}/probes/guest_core_sched.py",
            f"{T}/process/guest_core_sched.py",
        ),
    ),
    # All tasks are scheduled by a BPF program: koordlet's settings have no effect there, but its figures stay true.
    "sched-ext": Suite(
        900,
        (
            LATENCY,
            f"{T}/probes/guest_sched_ext.py",
            f"{EVERY}::test_a_stop_leaves_what_the_kubelet_had_set",
            # The last: the kernel removes a scheduler that lets a task wait for too long.
            f"{T}/system/guest_sched_ext.py",
        ),
        options=NO_QUOTAS,
        prepare=("bpftool", "struct_ops", "register", "build/guest/sched/fifo.bpf.o"),
    ),
    # The last: it takes most memory away, and what was read of files. If it is killed, the guest keeps little memory.
    "node-stalls": Suite(450, (f"{T}/probes/guest_node_stalls.py",)),
}


def up_s() -> str:
    return Path("/proc/uptime").read_text().split(".")[0]


def run(name: str, suite: Suite, out: Path) -> int:
    """Pytest's exit status, or `TIMED_OUT`."""
    print(f"guest: suite {name}, {up_s()} s after boot", flush=True)
    if suite.prepare:
        subprocess.run(suite.prepare, check=True)
    child = os.fork()
    if child == 0:
        status: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(suite.environment)
            report = (f"--junit-xml={out / name}.xml", "--durations=10", "-o", f"cache_dir={out / 'cache'}-{name}")
            status = pytest.main(["-m", "kernel", *report, *suite.options, *suite.tests])
        finally:
            sys.stdout.flush()
            os._exit(status)
    process = os.pidfd_open(child)
    try:
        if select.select([process], [], [], suite.limit_s)[0]:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.kill(child, signal.SIGINT)
        select.select([process], [], [], KILL_AFTER_S)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        os.close(process)
    print(f"guest: suite {name} exceeded its limit of {suite.limit_s} s; the traceback above shows where it was")
    return TIMED_OUT


def main(names: list[str]) -> int:
    out = Path(os.environ["GUEST_OUT"])
    file_system = subprocess.run(["stat", "-fc", "%T", "/sys/fs/cgroup"], check=True, capture_output=True, text=True)
    print(f"guest: {os.uname().release}, {file_system.stdout.strip()}", flush=True)
    suites = {name: suite for name, suite in SUITES.items() if name in names}
    began = time.monotonic()
    tests = [test for suite in suites.values() for test in suite.tests]
    status = pytest.main(["--collect-only", "-qqq", "-m", "kernel", "-p", "no:cacheprovider", *tests])
    if status != 0:
        return int(status)
    print(f"guest: {len(tests)} names imported in {time.monotonic() - began:.0f} s")
    failed = 0
    for name, suite in suites.items():
        status = run(name, suite, out)
        (out / f"{name}.end").write_text(f"{int(status)}\n")
        failed |= status != 0
    print(f"guest: done {up_s()} s after boot", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
