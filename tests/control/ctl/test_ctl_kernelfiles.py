"""The demo's reading of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.ctl.demo import kernelfiles
from control.ctl.demo.kernelfiles import AverageUsage, PodFiles, UsageSample, average

UID = "0b7b326d-e329-4e94-920d-6d5dbe3a282f"


def test_busy_seconds_leave_idle_iowait_and_steal_out() -> None:
    stat = "cpu  100 20 30 99999 77 5 45 88 3 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
    assert kernelfiles.busy_seconds(stat) == pytest.approx(200 / kernelfiles._TICK)


def test_used_memory() -> None:
    meminfo = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\nHugePages_Total:     0\n"
    assert kernelfiles.used_memory(meminfo) == 600 * 1024


def v1(root: Path, leaf: str) -> PodFiles:
    for controller in ("cpuacct", "memory"):
        (root / controller / leaf).mkdir(parents=True)
    (root / "cpuacct" / leaf / "cpuacct.usage").write_text("2500000000\n")
    (root / "memory" / leaf / "memory.stat").write_text(
        "inactive_anon 1\nactive_anon 1\nunevictable 1\n"
        "total_inactive_anon 100\ntotal_active_anon 20\ntotal_unevictable 3\ntotal_inactive_file 999\n"
    )
    return PodFiles(root / "cpuacct" / leaf, root / "memory" / leaf)


@pytest.mark.parametrize(
    "leaf",
    [
        f"kubepods/burstable/pod{UID}",
        f"kubepods/pod{UID}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_v1_pods_of_both_drivers(tmp_path: Path, leaf: str) -> None:
    directory = v1(tmp_path, leaf)
    assert kernelfiles.find_pod(UID, tmp_path) == directory
    assert kernelfiles.pod_cpu_seconds(directory) == 2.5
    assert kernelfiles.pod_memory(directory) == 123


def test_v2_pod(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    pod = tmp_path / f"kubepods/besteffort/pod{UID}"
    pod.mkdir(parents=True)
    (pod / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (pod / "memory.stat").write_text("anon 5\ninactive_anon 10\nactive_anon 20\nunevictable 0\n")
    files = kernelfiles.find_pod(UID, tmp_path)
    assert files == PodFiles(pod, pod)
    assert (kernelfiles.pod_cpu_seconds(files), kernelfiles.pod_memory(files)) == (1.5, 30)


def test_no_pod_yet(tmp_path: Path) -> None:
    assert kernelfiles.find_pod(UID, tmp_path) is None


def samples(count: int) -> list[UsageSample]:
    """One sample per second: half a core on the node, a fifth in the pod, which exists from second 3 on."""
    return [
        UsageSample(float(t), 100 + t * 0.5, 1000.0 + t, {"web": (t * 0.2, 64.0)} if t >= 3 else {})
        for t in range(count)
    ]


def test_average_over_a_window() -> None:
    use = average(samples(11), 4.0, 8.0)
    assert use == AverageUsage(pytest.approx(0.5), 1006.0)  # type: ignore[arg-type]


def test_average_of_a_pod_counts_only_samples_that_have_it() -> None:
    use = average(samples(11), 0.0, 10.0, "web")
    assert use == AverageUsage(pytest.approx(0.2), 64.0)  # type: ignore[arg-type]
    assert average(samples(11), 0.0, 10.0, "other") is None


def test_average_without_samples_in_the_window() -> None:
    assert average(samples(3), 50.0, 60.0) is None


def test_a_sampler_reads_this_machine() -> None:
    sampler = kernelfiles.Sampler({"gone": PodFiles(Path("/nonexistent"), Path("/nonexistent"))})
    sampler.stop()
    first = sampler.samples[0]
    assert first.cpu > 0 and first.memory > 0 and first.pods == {}
