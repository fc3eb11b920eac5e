"""The readers on the real kernel (v1, hybrid or v2): cgroups of the test, real processes, second sources."""

import errno
import functools
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest

from koordlet.system import write
from koordlet.system.cgroup import codecs
from koordlet.system.cgroup.batch import BatchReader, Want
from koordlet.system.cgroup.files import parse_key_values
from koordlet.system.cgroup.owners import OwnerKind, classify
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.registry import RESOURCES, FileKind, lookup
from koordlet.system.cgroup.tree import cgroup_id
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.errors import CgroupGone
from koordlet.system.host import Host
from koordlet.system.proc import procfs
from koordlet.system.proc.psi import RESOURCES as RESOURCES_WITH_PRESSURE
from tests.conftest import ChildCgroup
from tests.koordlet.cgroupfigures import cpu_stat, memory_stat, memory_use
from tests.present import present
from tests.waiting import wait_until

pytestmark = pytest.mark.kernel
MIB = 1 << 20
ALL = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT | Want.PRESSURE


def stop(process: Any) -> None:
    """Stop the process, so that readings of two sources are of the same moment."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt")


def test_cpu_usage_agrees_with_the_process(
    kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup], burner: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    process = burner(child)

    def ran() -> Any:
        return present(procfs.read_schedstat(kernel_host.roots, process.pid)).run_ns

    wait_until(lambda: ran() > 50_000_000)
    stop(process)
    task, usage = ran(), kernel_fs.cpu_usage(child.dir)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: ran() - task > 300_000_000)
    stop(process)
    assert usage is not None
    task, usage = ran() - task, present(kernel_fs.cpu_usage(child.dir)) - usage
    assert usage == pytest.approx(task, rel=0.05, abs=3 * kernel_host.facts.jiffy_ns)


def test_throttling_is_counted(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], burner: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    spec = lookup("cpu.cfs_quota_us", kernel_fs.version)
    child.write("cpu", spec.file, spec.codec.encode(10_000, ""))
    assert (kernel_fs.cpu_quota(child.dir), kernel_fs.cpu_period(child.dir)) == (10_000, 100_000)
    burner(child)

    def throttled() -> Any:
        stat = cpu_stat(kernel_fs, child.dir)
        return stat["nr_throttled"] >= 2 and stat["throttled_ns"] > 0

    wait_until(throttled)
    table = BatchReader(kernel_fs).read([child.dir], Want.CPU_STAT)
    assert table.columns["nr_periods"][0] >= table.columns["nr_throttled"][0] >= 2
    assert table.columns["throttled_ns"][0] > 0


def test_memory_agrees_with_the_process(
    kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup], toucher: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    pid = toucher(child, 48).pid
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
    use = memory_use(kernel_fs, child.dir)
    assert anonymous > 48 * MIB
    assert use == pytest.approx(anonymous, abs=2 * MIB)
    assert memory_stat(kernel_fs, child.dir)["rss"] == pytest.approx(anonymous, abs=2 * MIB)
    assert kernel_fs.memory_usage(child.dir) >= use - MIB  # type: ignore[operator]
    numa = kernel_fs.memory_numa(child.dir)
    assert sum(node.usage for node in present(numa).values()) == pytest.approx(use, abs=2 * MIB)


def test_pod_numbers_contain_their_containers(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], toucher: Callable[..., Popen[str]]
) -> None:
    pod = cgroup_child("pod")
    container = pod.child("container")
    toucher(container, 24)
    assert memory_use(kernel_fs, pod.dir) >= 24 * MIB
    assert sum(node.usage for node in present(kernel_fs.memory_numa(pod.dir)).values()) >= 24 * MIB
    used = present(kernel_fs.cpu_usage(container.dir))  # read first: the process may still run
    assert present(kernel_fs.cpu_usage(pod.dir)) >= used > 0


def test_tasks_and_processes(
    kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup], spawn: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    assert kernel_fs.procs(child.dir) == ()
    process = spawn(["sleep", "600"], child)
    assert kernel_fs.procs(child.dir) == (process.pid,)
    assert kernel_fs.tasks(child.dir) == (process.pid,)
    assert child.dir in present(procfs.read_cgroups(kernel_host.roots, process.pid)).values()


def test_limits_are_read_back(kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]) -> None:
    child = cgroup_child()
    assert kernel_fs.value("memory.limit_in_bytes", child.dir) == codecs.UNLIMITED
    assert kernel_fs.cpu_quota(child.dir) == codecs.UNLIMITED
    spec = lookup("memory.limit_in_bytes", kernel_fs.version)
    child.write("memory", spec.file, spec.codec.encode(64 * MIB, ""))
    assert kernel_fs.value("memory.limit_in_bytes", child.dir) == 64 * MIB
    child.write("memory", spec.file, spec.codec.encode(codecs.UNLIMITED, ""))
    assert kernel_fs.value("memory.limit_in_bytes", child.dir) == codecs.UNLIMITED


@pytest.mark.parametrize("shares", [2, 1024, 2048, 262144])
def test_shares_are_read_back(kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], shares: Any) -> None:
    child = cgroup_child()
    spec = lookup("cpu.shares", kernel_fs.version)
    child.write("cpu", spec.file, spec.codec.encode(shares, ""))
    expected = shares if kernel_fs.version == 1 else codecs.weight_to_shares(codecs.shares_to_weight(shares))
    assert kernel_fs.value("cpu.shares", child.dir) == expected


def test_an_idle_group_has_shares(kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]) -> None:
    child = cgroup_child()
    child.write("cpu", "cpu.idle", 1)
    assert kernel_fs.value("cpu.idle", child.dir) == 1
    assert 2 <= present(kernel_fs.value("cpu.shares", child.dir)) < 1024


def test_the_cpu_set_is_read(kernel_fs: CgroupFS, kernel_host: Host, cgroup_child: Callable[..., ChildCgroup]) -> None:
    child = cgroup_child()
    assert kernel_fs.cpuset(child.dir) == kernel_host.facts.online_cpus
    child.write("cpuset", "cpuset.cpus", "0")
    assert kernel_fs.cpuset(child.dir) == CPUSet({0})


def test_pressure_is_read(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], burner: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    for _ in range(6):
        burner(child)
    wait_until(lambda: present(kernel_fs.pressure("cpu", child.dir)).some.total > 0)
    assert present(kernel_fs.pressure("memory", child.dir)).full is not None


def test_every_file_of_the_registry_that_exists_is_readable(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], spawn: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    spawn(["sleep", "600"], child)
    typed = {
        "cpuacct.usage": kernel_fs.cpu_usage, "memory.numa_stat": kernel_fs.memory_numa,
        "cgroup.procs": kernel_fs.procs, "tasks": kernel_fs.tasks, "cpuset.cpus": kernel_fs.cpuset,
        "cpuset.cpus.effective": kernel_fs.cpuset,
        **{f"{name}.pressure": functools.partial(kernel_fs.pressure, name) for name in RESOURCES_WITH_PRESSURE},
    }  # fmt: skip
    readable = []
    for name, resource in RESOURCES.items():
        spec = resource.spec(kernel_fs.version)
        if spec is None or spec.kind is FileKind.COMMAND:
            continue
        text = kernel_fs.text(name, child.dir)
        if text is None:
            continue
        readable.append(name)
        if name in typed:
            assert typed[name](child.dir) is not None, name  # type: ignore[operator]
        elif spec.kind is FileKind.VALUE:
            value = kernel_fs.value(name, child.dir)
            if spec.validator is not None and not spec.read_only:
                spec.validator.check(name, spec.codec.encode(present(value), text))
        elif spec.kind is FileKind.KEY_VALUES:
            assert all(int(value) >= 0 for value in parse_key_values(text).values()), name
        else:
            assert spec.kind is FileKind.BLKIO, name
            codecs.parse_blkio(text)
    assert {"cpu.stat", "cpu.shares", "cpu.cfs_quota_us", "cpu.idle", "cpuset.cpus", "memory.stat", "cpuacct.usage",
            "memory.limit_in_bytes", "memory.numa_stat", "cgroup.procs", "cpu.pressure"} <= set(readable)  # fmt: skip


def test_a_removed_group_is_an_error_until_it_is_created_again(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], burner: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    burning = burner(child)
    wait_until(lambda: kernel_fs.cpu_usage(child.dir) > 0)  # type: ignore[operator]
    kernel_fs.cache.begin_tick()
    assert kernel_fs.cpu_usage(child.dir) > 0  # type: ignore[operator]
    old = kernel_fs.cgroup_id(child.dir)
    burning.kill()
    burning.wait()
    child.remove()
    with pytest.raises(CgroupGone):
        kernel_fs.cpu_usage(child.dir)
    with pytest.raises(CgroupGone):
        kernel_fs.cgroup_id(child.dir)
    child.make()
    assert kernel_fs.cpu_usage(child.dir) == 0
    assert kernel_fs.cgroup_id(child.dir) != old


def test_a_group_replaced_between_two_reads_is_opened_again(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]
) -> None:
    child = cgroup_child()
    assert kernel_fs.text("cpu.stat", child.dir)
    opened = kernel_fs.cache.opens
    child.remove()
    child.make()
    assert kernel_fs.text("cpu.stat", child.dir)
    assert kernel_fs.cache.opens == opened + 1


def test_a_batch_shows_removed_and_recreated_groups(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]
) -> None:
    kept, removed, recreated = (cgroup_child(name) for name in ("kept", "removed", "recreated"))
    dirs = [kept.dir, removed.dir, recreated.dir]
    reader = BatchReader(kernel_fs)
    first = reader.read(dirs, ALL)
    assert not first.gone.any()
    assert not first.errors
    assert first.cgroup_id.tolist() == [kernel_fs.cgroup_id(cgroup_dir) for cgroup_dir in dirs]
    removed.remove()
    recreated.remove()
    recreated.make()
    second = reader.read(dirs, ALL)
    assert list(second.gone) == [False, True, False]
    assert (second.cgroup_id != first.cgroup_id).tolist() == [False, True, True]
    assert not second.errors
    assert np.isnan(second.columns["memory_rss"]).tolist() == [False, True, False]
    assert second.columns["cpu_some_total"].shape == (3,)


def test_a_batch_agrees_with_a_second_reading(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], toucher: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    toucher(child, 8)
    used_before = kernel_fs.cpu_usage(child.dir)
    table = BatchReader(kernel_fs).read([child.dir], ALL)
    assert table.columns["memory_rss"][0] == pytest.approx(memory_stat(kernel_fs, child.dir)["rss"], abs=MIB)
    assert (
        0 < used_before <= table.columns["cpu_usage_ns"][0] <= present(kernel_fs.cpu_usage(child.dir))  # type: ignore[operator]
    )


def test_the_id_is_the_inode(kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup]) -> None:
    child = cgroup_child()
    assert kernel_fs.cgroup_id(child.dir) == child.path("cpu").stat().st_ino == cgroup_id(child.path("cpu"))


def test_the_owner_of_a_test_cgroup_is_other(cgroup_child: Callable[..., ChildCgroup]) -> None:
    assert classify(cgroup_child().dir).kind is OwnerKind.OTHER


def test_refused_writes_raise_the_error_of_their_kind(
    kernel_fs: CgroupFS, cgroup_child: Callable[..., ChildCgroup], toucher: Callable[..., Popen[str]]
) -> None:
    child = cgroup_child()
    shares = kernel_fs.path("cpu.shares", child.dir)
    with pytest.raises(write.WriteRefused, match="writing 'x'") as caught:
        write.write_value(shares, "x")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(write.TargetGone) as caught:  # type: ignore[assignment]
        write.write_value(kernel_fs.path("cgroup.procs", child.dir), str(2**22 - 1))
    assert caught.value.errno == errno.ESRCH
    toucher(child, 16)
    for path in child.paths:
        with pytest.raises(OSError, match="busy"):
            path.rmdir()
    write.write_value(shares, "100")
    assert kernel_fs.text("cpu.shares", child.dir) == "100"
    with pytest.raises(write.TargetGone):
        write.write_value(shares.replace(child.dir, child.dir + "-none"), "100")
