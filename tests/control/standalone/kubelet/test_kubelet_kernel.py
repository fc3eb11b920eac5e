"""The kubelet on the real kernel with the machine's cgroup version: files, processes, exits, restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.cgroups.cleanup import remove_all
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.values import CgroupValues
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.runtimes.launcher import starttime
from control.standalone.kubelet.runtimes.process import ProcessRuntime
from control.standalone.kubelet.runtimes.runtime import ContainerConfig

pytestmark = pytest.mark.kernel

BOTH_DRIVERS = pytest.mark.parametrize("machine_world", ["cgroupfs", "systemd"], indirect=True)
SLEEP = ["sleep", "1000"]


def value(tree: CgroupTree, path: str, what: str) -> str:
    """One value of the table below, from the file that this kernel has for it."""
    v1 = {
        "shares": ("cpu", "cpu.shares"),
        "quota": ("cpu", "cpu.cfs_quota_us"),
        "memory": ("memory", "memory.limit_in_bytes"),
    }
    v2 = {"shares": "cpu.weight", "quota": "cpu.max", "memory": "memory.max"}
    if tree.version == 1:
        controller, name = v1[what]
        text = (tree.roots[controller] / path / name).read_text().strip()
        return "none" if text == "-1" or (what == "memory" and int(text) >= 1 << 62) else text
    text = (tree.roots[""] / path / v2[what]).read_text().split()[0]
    return "none" if text == "max" else text


# QoS class, resources, then (v1 shares, v2 weight), quota, memory of the pod and of the container; computed by hand.
VALUES = {
    "besteffort": ({}, "BestEffort", ("2", "1"), "none", "none"),
    "burstable": ({"requests": {"cpu": "250m", "memory": "32Mi"}}, "Burstable", ("256", "10"), "none", "none"),
    "limited": (
        {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1500m", "memory": "64Mi"}},
        "Burstable",
        ("256", "10"),
        "150000",
        "67108864",
    ),
    "guaranteed": (
        {"limits": {"cpu": "1", "memory": "128Mi"}},
        "Guaranteed",
        ("1024", "39"),
        "100000",
        "134217728",
    ),
}


@BOTH_DRIVERS
@pytest.mark.parametrize(("resources", "qos", "shares", "quota", "memory"), VALUES.values(), ids=VALUES.keys())
async def test_cgroup_files(
    machine_world: Any, pod: Any, resources: Any, qos: str, shares: Any, quota: str, memory: str
) -> None:
    world, tree = machine_world, machine_world.tree
    container = {"name": "main", "image": "x", "command": SLEEP, "resources": resources}
    world.api.create_pod(pod(containers=[container]))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    assert world.status("web")["qosClass"] == qos
    info = next(i for i in world.runtime.containers() if i.name == "main")
    pod_dir = info.cgroup.rpartition("/")[0]
    for path in (pod_dir, info.cgroup):
        assert value(tree, path, "shares") == shares[tree.version - 1]
        assert value(tree, path, "quota") == quota
        assert value(tree, path, "memory") == memory
    for hierarchy in tree.roots:
        joined = (tree.dir(hierarchy, info.cgroup) / "cgroup.procs").read_text().split()
        assert joined == [str(info.pid)], f"in {hierarchy or 'the unified tree'}"
    burstable = pod_dir.rpartition("/")[0] if qos == "Burstable" else None
    if burstable:
        assert value(tree, burstable, "shares") == shares[tree.version - 1]
    root = world.names.root()
    assert value(tree, root, "shares") == ("3584", "137")[tree.version - 1]  # 4 CPUs less 500m
    assert value(tree, root, "memory") == str(15 << 30)
    world.api.delete_pod("web", grace=1)
    await world.until(lambda: world.api.pod("web") is None)
    assert not tree.exists(pod_dir)
    if burstable:
        assert value(tree, burstable, "shares") == ("2", "1")[tree.version - 1]


async def test_no_instruction_runs_outside_the_cgroup(machine_world: Any, pod: Any) -> None:
    """The command first reads its cgroup; its environment and directory are as requested."""
    world = machine_world
    script = "cat /proc/self/cgroup; echo dir=$PWD a=$A host=$HOSTNAME; cat /proc/self/oom_score_adj"
    container = {
        "name": "main",
        "image": "x",
        "command": ["sh", "-c", script],
        "env": [{"name": "A", "value": "1"}],
        "workingDir": "/usr",
    }
    world.api.create_pod(pod(containers=[container], restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Succeeded")
    info = next(i for i in world.runtime.containers() if i.name == "main")
    lines = [line.split(" ", 3)[3] for line in info.log_path.read_text().splitlines()]
    *cgroups, where, adj = lines
    assert where == "dir=/usr a=1 host=web"
    assert adj == "1000"
    by_controller = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in cgroups}
    if world.tree.version == 2:
        assert by_controller[""] == f"/{info.cgroup}"
    else:
        for controller in ("cpu", "cpuacct", "cpuset", "memory", "pids", "blkio"):
            if controller in world.tree.roots:
                assert by_controller[controller] == f"/{info.cgroup}"


async def test_exit_code_log_and_remaining_processes(machine_world: Any, pod: Any) -> None:
    world = machine_world
    script = "sleep 1000 & echo out; echo err >&2; printf end; exit 3"
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script]}
    world.api.create_pod(pod(containers=[container], restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    ended = world.container("web")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    info = next(i for i in world.runtime.containers() if i.name == "main")
    records = sorted(tuple(line.split(" ", 3)[1:]) for line in info.log_path.read_text().splitlines())
    assert records == [("stderr", "F", "err"), ("stdout", "F", "end"), ("stdout", "F", "out")]
    assert not world.tree.exists(info.cgroup), "background processes of the command are killed, too"


async def test_out_of_memory_has_its_own_reason(machine_world: Any, pod: Any) -> None:
    world = machine_world
    hog = [sys.executable, "-c", "x = bytearray(200 << 20); print(len(x))"]
    container = {"name": "main", "image": "x", "command": hog, "resources": {"limits": {"memory": "32Mi"}}}
    world.api.create_pod(pod(containers=[container], restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    ended = world.container("web")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["no-such-program"], 127, "executable file not found in $PATH"),
        (["/no/such/file"], 127, "no such file or directory"),
        (["/etc/passwd"], 126, "permission denied"),
    ],
)
async def test_commands_that_cannot_be_executed(
    machine_world: Any, pod: Any, command: list[str], code: int, text: str
) -> None:
    world = machine_world
    world.api.create_pod(pod(containers=[{"name": "main", "image": "x", "command": command}], restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    ended = world.container("web")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerCannotRun", code)
    assert text in ended["message"]


async def test_processes_that_ignore_sigterm_are_killed_with_their_children(machine_world: Any, pod: Any) -> None:
    world = machine_world
    script = "trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & while :; do sleep 1; done"
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script]}
    world.api.create_pod(pod(containers=[container], terminationGracePeriodSeconds=1))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    info = next(i for i in world.runtime.containers() if i.name == "main")
    await world.until(lambda: len(world.tree.pids(info.cgroup)) >= 3)
    pids = world.tree.pids(info.cgroup)
    world.api.delete_pod("web")
    await world.until(lambda: world.api.pod("web") is None)
    alive = [p for p in pids if state_of(p) not in ("Z", "gone")]
    assert alive == []


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_exec_probe_runs_inside_the_container(machine_world: Any, pod: Any) -> None:
    world = machine_world
    probe = {"exec": {"command": ["sh", "-c", "cat /proc/self/cgroup >&2; exit 1"]}, "periodSeconds": 1}
    container = {"name": "main", "image": "x", "command": SLEEP, "readinessProbe": probe}
    world.api.create_pod(pod(containers=[container]))
    await world.until(lambda: "Unhealthy" in world.events.reasons())
    info = next(i for i in world.runtime.containers() if i.name == "main")
    message = next(m for _, _, reason, m in world.events.all if reason == "Unhealthy")
    assert info.cgroup in message


async def test_processes_continue_while_the_kubelet_is_down(
    machine_world: Any, pod: Any, real_tree: Any, tmp_path: Path
) -> None:
    world, go = machine_world, tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; exit 7"
    containers = [
        {"name": "stays", "image": "x", "command": SLEEP},
        {"name": "ends", "image": "x", "command": ["sh", "-c", script]},
    ]
    world.api.create_pod(pod(containers=containers, restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    before = {i.name: i for i in world.runtime.containers()}
    await world.kubelet.stop()
    await world.runtime.close()
    go.touch()
    async with asyncio.timeout(60):
        while not (world.root / "containers" / before["ends"].id / "exit.json").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await world.restart(ProcessRuntime(world.root / "containers", real_tree, 1 << 20, 3))
    after = {i.name: i for i in world.runtime.containers()}
    assert after["stays"] == before["stays"]
    assert after["POD"] == before["POD"]
    await world.until(lambda: "terminated" in world.container("web", 1)["state"])
    assert world.container("web", 1)["state"]["terminated"]["exitCode"] == 7, "its shim has recorded the exit code"
    assert world.container("web", 0)["state"].keys() == {"running"}
    os.kill(after["stays"].pid, signal.SIGTERM)
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    assert world.container("web", 0)["state"]["terminated"]["exitCode"] == 143


async def test_the_container_of_a_killed_shim_is_killed(machine_world: Any, pod: Any) -> None:
    world = machine_world
    world.api.create_pod(pod(restartPolicy="Never"))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    info = next(i for i in world.runtime.containers() if i.name == "main")
    os.kill(parent_of(info.pid), signal.SIGKILL)
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    ended = world.container("web")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
    assert state_of(info.pid) in ("gone", "Z")


async def test_containers_survive_kill_9_of_the_process_that_started_them(
    tmp_path: Path, real_tree: CgroupTree
) -> None:
    """A process starts a container and is killed; another one finds the container and stops it."""
    cgroup = f"koordtest-{os.getpid()}-kill9"
    script = textwrap.dedent(
        f"""
        import asyncio, os, signal
        from pathlib import Path
        from control.standalone.kubelet.cgroups.directories import CgroupTree
        from control.standalone.kubelet.cgroups.values import CgroupValues
        from control.standalone.kubelet.runtimes.process import ProcessRuntime
        from control.standalone.kubelet.runtimes.runtime import ContainerConfig
        async def main():
            tree = CgroupTree.discover(Path("/sys/fs/cgroup"))
            runtime = ProcessRuntime(Path({str(tmp_path / "c")!r}), tree, 1 << 20, 2)
            await runtime.load()
            await runtime.start(ContainerConfig(
                id="a" * 64, pod_uid="u", name="main", attempt=2, image="", argv=["sleep", "1000"], env={{}},
                cwd=None, cgroup={cgroup + "/x"!r}, values=CgroupValues(), oom_score_adj=1000,
                log_path=Path({str(tmp_path / "log")!r}) / "0.log"))
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    runtime = ProcessRuntime(tmp_path / "c", real_tree, 1 << 20, 2)
    try:
        await runtime.load()
        (info,) = runtime.containers("u")
        assert info.running
        assert info.attempt == 2
        assert starttime(info.pid) is not None
        assert real_tree.pids(info.cgroup) == {info.pid}
        ended: list[Any] = []
        runtime.on_exit(ended.append)
        await runtime.kill(info.id)
        assert [e.exit_code for e in ended] == [137]
        assert ended[0].reason == "Error", "killed by the kubelet, not by the OOM killer"
        await runtime.remove(info.id)
        assert list((tmp_path / "c").iterdir()) == []
    finally:
        real_tree.kill(cgroup)
        await runtime.close()
        real_tree.remove(cgroup)
    assert not real_tree.exists(cgroup)


async def test_a_partially_created_container_is_removed(tmp_path: Path, real_tree: CgroupTree) -> None:
    folder = tmp_path / "c" / ("b" * 64)
    folder.mkdir(parents=True)
    cgroup = f"koordtest-{os.getpid()}-half"
    real_tree.create(cgroup)
    (folder / "config.json").write_text(f'{{"cgroup": "{cgroup}"}}')
    runtime = ProcessRuntime(tmp_path / "c", real_tree, 1 << 20, 2)
    await runtime.load()
    assert runtime.containers() == []
    assert not folder.exists()
    assert not real_tree.exists(cgroup)


async def test_a_container_with_a_damaged_state_file_is_stopped(tmp_path: Path, real_tree: CgroupTree) -> None:
    cgroup = f"koordtest-{os.getpid()}-damaged"
    runtime = ProcessRuntime(tmp_path / "c", real_tree, 2000, 3)
    await runtime.load()
    info = await runtime.start(plain_container(tmp_path, "d" * 64, cgroup, SLEEP))
    await runtime.close()
    (tmp_path / "c" / info.id / "started.json").write_text('{"pid": ')
    again = ProcessRuntime(tmp_path / "c", real_tree, 2000, 3)
    await again.load()
    info_again = again.get(info.id)
    assert info_again is not None
    assert (info_again.running, info_again.exit_code, info_again.reason) == (False, 137, "ContainerStatusUnknown")
    assert not real_tree.exists(cgroup)
    await again.remove(info.id)
    await again.close()


def plain_container(tmp_path: Path, container_id: str, cgroup: str, argv: list[str]) -> ContainerConfig:
    return ContainerConfig(
        id=container_id,
        pod_uid="u",
        name="main",
        attempt=0,
        image="",
        argv=argv,
        env={},
        cwd=None,
        cgroup=cgroup,
        values=CgroupValues(),
        oom_score_adj=1000,
        log_path=tmp_path / "logs" / "0.log",
    )


async def test_logs_are_rotated_at_their_size(tmp_path: Path, real_tree: CgroupTree) -> None:
    cgroup = f"koordtest-{os.getpid()}-rotate"
    runtime = ProcessRuntime(tmp_path / "c", real_tree, 2000, 3)
    await runtime.load()
    script = "i=0; while [ $i -lt 200 ]; do echo line-$i; i=$((i+1)); done"
    info = await runtime.start(plain_container(tmp_path, "c" * 64, cgroup, ["sh", "-c", script]))
    async with asyncio.timeout(120):
        while runtime.get(info.id).running:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    names = sorted(p.name for p in (tmp_path / "logs").iterdir())
    assert names == ["0.log", "0.log.1", "0.log.2"]
    assert all(p.stat().st_size <= 2000 for p in (tmp_path / "logs").iterdir())
    assert (tmp_path / "logs" / "0.log").read_text().splitlines()[-1].endswith(" stdout F line-199")
    await runtime.remove(info.id)
    await runtime.close()


async def test_foreign_cgroups_are_not_removed(machine_world: Any) -> None:
    """A clean-up removes created directories that are empty, never those of others below them."""
    tree, names = machine_world.tree, machine_world.names
    foreign = f"{names.root()}/somebody-else"
    tree.create(foreign)
    try:
        assert machine_world.kubelet.cgroups.teardown() == [names.root(), names.prefix]
        assert tree.exists(foreign)
    finally:
        tree.remove(foreign)


async def test_cleanup_after_a_killed_kubelet(machine_world: Any, pod: Any, real_tree: Any) -> None:
    """`--cleanup` needs no API server and no kubelet, only state files and cgroups."""
    world = machine_world
    world.api.create_pod(pod())
    world.api.create_pod(pod("bad", containers=[{"name": "main", "image": "x", "command": "not a list"}]))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    await world.until(lambda: world.status("bad")["phase"] == "Failed")
    pids = [i.pid for i in world.runtime.containers()]
    await world.kubelet.stop()
    await world.runtime.close()
    runtime = ProcessRuntime(world.root / "containers", real_tree, 0, 1)
    assert await remove_all(runtime, world.kubelet.cgroups, PodStore(world.root / "pods")) == []
    await runtime.close()
    assert not real_tree.exists(world.names.prefix)
    assert [p for p in pids if state_of(p) not in ("Z", "gone")] == []
    assert list((world.root / "pods").iterdir()) == []
    world.kubelet.workers.clear()
    world.runtime = world.kubelet.runtime = runtime
