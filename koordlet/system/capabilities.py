"""The Linux capabilities that koordlet uses: for what, where, and what it does without. Data.

deploy/koordlet adds these to its container and no others, docs/security.md has a table made from them, and koordlet
reports the ones that it lacks. A kernel test runs the functions with all of these and no others, and without each of
them (`tests/koordlet/process/test_koordlet_capabilities.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class UsedCapability:
    """`name` as in a container's securityContext, without CAP_; `number` is the kernel's."""

    name: str
    number: int
    reason: str
    modules: tuple[str, ...]
    """Modules of koordlet that need it."""
    without: str


CAPABILITIES: Final = (
    UsedCapability(
        "BPF", 39, "load programs and create maps (Linux 5.8; before, SYS_ADMIN)", ("koordlet.probes.loading.frame",),
        "no probes: figures of files only",
    ),
    UsedCapability(
        "PERFMON", 38, "attach programs to tracepoints; hardware counters of cgroups",
        ("koordlet.probes.loading.frame", "koordlet.system.cpu.perf"), "no probes, no CPI",
    ),
    UsedCapability(
        "SYSLOG", 34, "addresses of kernel functions, unless sysctls show them to all users",
        ("koordlet.system.proc.kallsyms",), "some kinds of memory stalls are counted together",
    ),
    UsedCapability(
        "SYS_ADMIN", 21, "mount bpffs and resctrl; tracepoints and functions in the BTF of kernel modules",
        ("koordlet.probes.cgroup_stats", "koordlet.probes.oom", "koordlet.resourceexecutor.resctrlgroups"),
        "cgroup figures from files, depending on the kernel no OOM and network probe, no resctrl unless it is mounted",
    ),
    UsedCapability(
        "SYS_PTRACE", 19, "descriptors and memory of processes with more rights, core-scheduling cookies of others",
        ("koordlet.system.cgroup.naming", "koordlet.system.cpu.coresched"),
        "the kubelet's cgroup driver is known after the first pod only, no core scheduling",
    ),
    UsedCapability(
        "SYS_RESOURCE", 24, "`oom_score_adj` below the value that a process began with",
        ("koordlet.resourceexecutor.oomscores",), "OOM scores are only raised",
    ),
    UsedCapability(
        "DAC_OVERRIDE", 1, "`oom_score_adj` of processes of other users, cgroups delegated to them",
        ("koordlet.resourceexecutor.oomscores", "koordlet.resourceexecutor.kernelfiles"),
        "settings of containers that do not run as root fail",
    ),
    UsedCapability(
        "NET_ADMIN", 12, "queueing disciplines and address sets of the node's interface",
        ("koordlet.resourceexecutor.traffic", "koordlet.resourceexecutor.addresssets"), "no network QoS by koordlet",
    ),
)  # fmt: skip


def missing(effective: int) -> dict[str, str]:
    """Name -> what is missing and what to do, for each capability that is not in the mask of a process.

    BPF and PERFMON are not among them: SYS_ADMIN replaces them, and older kernels have only that."""
    return {
        each.name: f"CAP_{each.name} is not effective in this process: {each.without}. Add {each.name} to the "
        f"capabilities of the container, or CAP_{each.name} to CapabilityBoundingSet= of the unit"
        for each in CAPABILITIES
        if each.name not in ("BPF", "PERFMON") and not effective >> each.number & 1
    }
