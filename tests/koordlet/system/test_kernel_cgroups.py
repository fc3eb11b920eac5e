"""The readers on the real kernel, v1, hybrid or v2 alike: own cgroups, real processes, second sources."""

import errno
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from koordlet.system import write
from koordlet.system.cgroup import RESOURCES, BatchReader, CgroupGone, Want, cgroup_id, codecs, lookup
from koordlet.system.cgroup.owners import OwnerKind, classify
from koordlet.system.cgroup.registry import Kind
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.proc import procfs

pytestmark = pytest.mark.kernel
MIB = 1 << 20
ALL = Want.CPU_USAGE | Want.CPU_STAT | Want.MEMORY_STAT | Want.MEMORY_USAGE | Want.PRESSURE | Want.NUMA


def until(done):
    """Whoever else uses the CPUs: what has to come comes."""
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "did not come within a minute"
        time.sleep(0.02)


def stop(process):
    """So that readings of two sources are of the same moment."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt")


def test_cpu_usage_agrees_with_the_process(kernel_fs, kernel_host, cgroup_child, burner):
    child = cgroup_child()
    process = burner(child)

    def ran():
        return procfs.read_schedstat(kernel_host.roots, process.pid).run_ns

    until(lambda: ran() > 50_000_000)
    stop(process)
    task, usage = ran(), kernel_fs.cpu_usage(child.dir)
    process.send_signal(signal.SIGCONT)
    until(lambda: ran() - task > 300_000_000)
    stop(process)
    task, usage = ran() - task, kernel_fs.cpu_usage(child.dir) - usage
    assert usage == pytest.approx(task, rel=0.05, abs=3 * kernel_host.facts.jiffy_ns)


def test_cpu_times_add_up(kernel_fs, kernel_host, cgroup_child, burner):
    child = cgroup_child()
    process = burner(child)
    until(lambda: kernel_fs.cpu_usage(child.dir) > 300_000_000)
    started = kernel_fs.cpu_times(child.dir)  # so far it was the start of an interpreter: mostly the kernel's work
    until(lambda: kernel_fs.cpu_times(child.dir).user_ns - started.user_ns > 500_000_000)
    stop(process)
    times = kernel_fs.cpu_times(child.dir)
    assert times.user_ns + times.system_ns == pytest.approx(times.usage_ns, abs=2000)
    assert times.usage_ns == pytest.approx(kernel_fs.cpu_usage(child.dir), rel=0.2, abs=5 * kernel_host.facts.jiffy_ns)
    assert times.user_ns - started.user_ns > times.system_ns - started.system_ns


def test_throttling_is_counted(kernel_fs, cgroup_child, burner):
    child = cgroup_child()
    spec = lookup("cpu.cfs_quota_us", kernel_fs.version)
    child.write("cpu", spec.file, spec.codec.encode(10_000, ""))
    assert (kernel_fs.cpu_quota(child.dir), kernel_fs.cpu_period(child.dir)) == (10_000, 100_000)
    burner(child)
    until(lambda: kernel_fs.cpu_stat(child.dir).nr_throttled >= 2 and kernel_fs.cpu_stat(child.dir).throttled_ns > 0)
    stat = kernel_fs.cpu_stat(child.dir)
    assert stat.nr_periods >= stat.nr_throttled
    assert codecs.throttled_ratio(stat.nr_periods, stat.nr_throttled) > 0


def test_memory_agrees_with_the_process(kernel_fs, kernel_host, cgroup_child, toucher):
    child = cgroup_child()
    pid = toucher(child, 48).pid
    stat = kernel_fs.memory_stat(child.dir)
    anonymous = int(procfs.read_status(kernel_host.roots, pid)["RssAnon"].split()[0]) * 1024
    assert anonymous > 48 * MIB
    assert stat.usage == pytest.approx(anonymous, abs=2 * MIB)
    assert stat.rss == pytest.approx(anonymous, abs=2 * MIB)
    assert kernel_fs.memory_usage(child.dir) >= stat.usage - MIB
    numa = kernel_fs.memory_numa(child.dir)
    assert sum(node.usage for node in numa.values()) == pytest.approx(stat.usage, abs=2 * MIB)


def test_pod_numbers_contain_their_containers(kernel_fs, cgroup_child, toucher):
    pod = cgroup_child("pod")
    container = pod.child("container")
    toucher(container, 24)
    assert kernel_fs.memory_stat(pod.dir).usage >= 24 * MIB
    assert sum(node.usage for node in kernel_fs.memory_numa(pod.dir).values()) >= 24 * MIB
    assert kernel_fs.cpu_usage(pod.dir) >= kernel_fs.cpu_usage(container.dir) > 0


def test_tasks_and_processes(kernel_fs, kernel_host, cgroup_child, spawn):
    child = cgroup_child()
    assert kernel_fs.procs(child.dir) == ()
    process = spawn(["sleep", "600"], child)
    assert kernel_fs.procs(child.dir) == (process.pid,)
    assert kernel_fs.tasks(child.dir) == (process.pid,)
    assert child.dir in procfs.read_cgroups(kernel_host.roots, process.pid).values()


def test_limits_read_back(kernel_fs, cgroup_child):
    child = cgroup_child()
    assert kernel_fs.memory_limit(child.dir) == codecs.UNLIMITED
    assert kernel_fs.cpu_quota(child.dir) == codecs.UNLIMITED
    spec = lookup("memory.limit_in_bytes", kernel_fs.version)
    child.write("memory", spec.file, spec.codec.encode(64 * MIB, ""))
    assert kernel_fs.memory_limit(child.dir) == 64 * MIB
    child.write("memory", spec.file, spec.codec.encode(codecs.UNLIMITED, ""))
    assert kernel_fs.memory_limit(child.dir) == codecs.UNLIMITED


@pytest.mark.parametrize("shares", [2, 1024, 2048, 262144])
def test_shares_read_back(kernel_fs, cgroup_child, shares):
    child = cgroup_child()
    spec = lookup("cpu.shares", kernel_fs.version)
    child.write("cpu", spec.file, spec.codec.encode(shares, ""))
    expected = shares if kernel_fs.version == 1 else codecs.weight_to_shares(codecs.shares_to_weight(shares))
    assert kernel_fs.cpu_shares(child.dir) == expected


def test_idle_group_still_has_shares(kernel_fs, cgroup_child):
    child = cgroup_child()
    child.write("cpu", "cpu.idle", 1)
    assert kernel_fs.value("cpu.idle", child.dir) == 1
    assert 2 <= kernel_fs.cpu_shares(child.dir) < 1024


def test_cpuset(kernel_fs, kernel_host, cgroup_child):
    child = cgroup_child()
    assert kernel_fs.cpuset(child.dir) == kernel_host.facts.online_cpus
    child.write("cpuset", "cpuset.cpus", "0")
    assert kernel_fs.cpuset(child.dir) == CPUSet({0})


def test_pressure_is_there(kernel_fs, cgroup_child, burner):
    child = cgroup_child()
    for _ in range(6):
        burner(child)
    until(lambda: kernel_fs.pressure(child.dir).cpu.some.total > 0)  # six burners wait for fewer CPUs
    assert kernel_fs.pressure(child.dir).memory.full_supported


def test_every_file_of_the_registry_that_exists_is_readable(kernel_fs, cgroup_child, spawn):
    child = cgroup_child()
    spawn(["sleep", "600"], child)
    typed = {
        "cpu.stat": kernel_fs.cpu_stat, "cpuacct.stat": kernel_fs.cpu_times, "cpuacct.usage": kernel_fs.cpu_usage,
        "memory.stat": kernel_fs.memory_stat, "memory.numa_stat": kernel_fs.memory_numa,
        "cgroup.procs": kernel_fs.procs, "tasks": kernel_fs.tasks, "cpuset.cpus": kernel_fs.cpuset,
        "cpuset.cpus.effective": kernel_fs.cpuset, "cpu.pressure": kernel_fs.pressure,
        "memory.pressure": kernel_fs.pressure, "io.pressure": kernel_fs.pressure,
    }  # fmt: skip
    seen = []
    for name, resource in RESOURCES.items():
        spec = resource.spec(kernel_fs.version)
        if spec is None or spec.kind is Kind.COMMAND:
            continue
        text = kernel_fs.text(name, child.dir)
        if text is None:
            continue
        seen.append(name)
        if name in typed:
            assert typed[name](child.dir) is not None, name
        elif spec.kind is Kind.VALUE:
            value = kernel_fs.value(name, child.dir)
            if spec.validator is not None and not spec.read_only:
                spec.validator.check(name, spec.codec.encode(value, text))
        else:
            assert spec.kind is Kind.BLKIO, name
            codecs.parse_blkio(text)
    assert {"cpu.stat", "cpu.shares", "cpu.cfs_quota_us", "cpu.idle", "cpuset.cpus", "memory.stat", "cpuacct.usage",
            "memory.limit_in_bytes", "memory.numa_stat", "cgroup.procs", "cpu.pressure"} <= set(seen)  # fmt: skip


def test_vanished_and_recreated_with_the_same_name(kernel_fs, cgroup_child, burner):
    child = cgroup_child()
    burning = burner(child)
    until(lambda: kernel_fs.cpu_usage(child.dir) > 0)
    kernel_fs.cache.begin_tick()
    assert kernel_fs.cpu_usage(child.dir) > 0
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


def test_replaced_between_two_reads(kernel_fs, cgroup_child):
    child = cgroup_child()
    kernel_fs.cache.begin_tick()
    assert kernel_fs.cpu_stat(child.dir)
    path = kernel_fs.path("cpu.stat", child.dir)
    child.remove()
    child.make()
    assert kernel_fs.cpu_stat(child.dir)
    assert kernel_fs.cache.reopened == {path}


def test_batch_flags_gone_and_recreated(kernel_fs, cgroup_child):
    stays, goes, returns = (cgroup_child(name) for name in ("stays", "goes", "returns"))
    dirs = [stays.dir, goes.dir, returns.dir]
    reader = BatchReader(kernel_fs)
    first = reader.read(dirs, ALL)
    assert not first.gone.any()
    assert not first.errors
    assert [int(one) for one in first.cgroup_id] == [kernel_fs.cgroup_id(one) for one in dirs]
    goes.remove()
    returns.remove()
    returns.make()
    second = reader.read(dirs, ALL)
    assert list(second.gone) == [False, True, False]
    assert list(second.recreated) == [False, False, True]
    assert not second.errors
    assert np.isnan(second.columns["memory_rss"]).tolist() == [False, True, False]
    assert second.columns["cpu_some_total"].shape == (3,)


def test_batch_agrees_with_the_typed_readers(kernel_fs, cgroup_child, toucher):
    child = cgroup_child()
    toucher(child, 8)
    table = BatchReader(kernel_fs).read([child.dir], ALL)
    assert table.columns["memory_rss"][0] == pytest.approx(kernel_fs.memory_stat(child.dir).rss, abs=MIB)
    assert table.columns["cpu_usage_ns"][0] == pytest.approx(kernel_fs.cpu_usage(child.dir), rel=0.05)
    assert table.numa_nodes == tuple(kernel_fs.memory_numa(child.dir))
    assert np.nansum(table.numa_usage[0]) >= 8 * MIB


def test_id_is_the_inode(kernel_fs, cgroup_child):
    child = cgroup_child()
    assert kernel_fs.cgroup_id(child.dir) == child.path("cpu").stat().st_ino == cgroup_id(child.path("cpu"))


def test_owner_of_an_own_cgroup(cgroup_child):
    assert classify(cgroup_child().dir).kind is OwnerKind.OTHER


def test_refused_writes_are_typed(kernel_fs, cgroup_child, toucher):
    child = cgroup_child()
    shares = kernel_fs.path("cpu.shares", child.dir)
    with pytest.raises(write.Refused, match="writing 'x'") as caught:
        write.write_value(shares, "x")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(write.TargetGone) as caught:
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
