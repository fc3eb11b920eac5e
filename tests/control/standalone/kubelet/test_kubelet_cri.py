"""The kubelet over CRI: pods are real containers of Debian's containerd that survive kubelet and containerd."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver
from control.standalone.kubelet.cgroups.values import CgroupValues
from control.standalone.kubelet.runtimes.cri import CriRuntime
from control.standalone.kubelet.runtimes.criclient import CriClient
from control.standalone.kubelet.runtimes.runtime import ContainerConfig, SandboxConfig
from koordlet.app.clock import SYSTEM_CLOCK
from tests.control.standalone.kubelet.conftest import FakeApi, World
from tests.runtimes.daemons import Containerd

pytestmark = pytest.mark.runtime

SLEEP = ["sleep", "1000"]


def runtime_of(containerd: Containerd, tree: CgroupTree, log_max_bytes: int = 1 << 20) -> CriRuntime:
    return CriRuntime(CriClient(f"unix://{containerd.socket}"), tree, log_max_bytes, 3, poll=0.1)


@pytest.fixture
async def world(containerd: Containerd, tmp_path: Path, real_tree: CgroupTree) -> AsyncIterator[World]:
    """A kubelet whose runtime is the session's containerd, below its own cgroup."""
    names = CgroupNames(Driver.CGROUPFS, f"koordtest-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    runtime = runtime_of(containerd, real_tree)
    world = World(tmp_path, SYSTEM_CLOCK, FakeApi(SYSTEM_CLOCK.now), runtime, real_tree, names)
    await world.start()
    try:
        yield world
    finally:
        await world.kubelet.stop()
        await world.kubelet.cleanup()
        await world.runtime.close()
        assert not real_tree.exists(names.prefix), "cgroups were not removed"
    assert world.api.violations == []


def main(world: World, name: str = "main") -> Any:
    return max((i for i in world.runtime.containers() if i.name == name), key=lambda i: i.attempt)


def pods(world: World) -> list[Any]:
    """The sandboxes: one per pod, or temporarily none."""
    return [i for i in world.runtime.containers() if i.name == "POD"]


def lines(info: Any) -> list[str]:
    return [line.split(" ", 3)[3] for line in info.log_path.read_text().splitlines()]


async def test_volumes_and_security_reach_the_container(world: World, pod: Callable[..., Any], tmp_path: Path) -> None:
    """A pod of a privileged namespace, as koordlet's: files of the node, an account token, few capabilities."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node/file").write_text("of the node\n")
    sources = [{"serviceAccountToken": {"path": "token"}}]
    volumes = [
        {"name": "node", "hostPath": {"path": str(tmp_path / "node"), "type": "Directory"}},
        {"name": "account", "projected": {"sources": sources}},
        {"name": "scratch", "emptyDir": {}},
    ]
    paths = {"node": "/node", "account": "/account", "scratch": "/scratch"}
    script = (
        "cat /node/file; cat /account/token; echo; touch /scratch/x && ls /scratch; touch /x || echo read-only;"
        "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; echo $KUBERNETES_SERVICE_HOST; exec sleep 1000"
    )
    context = {
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["KILL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "securityContext": context,
                 "volumeMounts": mounts}  # fmt: skip
    manifest = pod(containers=[container], volumes=volumes, serviceAccountName="robot", terminationGracePeriodSeconds=1)
    manifest["metadata"]["namespace"] = "system"
    created = world.api.create_pod(manifest)
    await world.until(lambda: (world.api.pod("web", "system") or {})["status"]["phase"] == "Running")
    info = main(world)
    await world.until(lambda: len(lines(info)) >= 8)
    uid = created["metadata"]["uid"]
    text = lines(info)
    assert text[0] == "of the node" and text[1] == f"token-of-robot-{uid}" and text[2] == "x"
    assert "read-only" in text
    values = dict(line.split() for line in text if line.startswith(("CapEff", "NoNewPrivs", "Seccomp")))
    assert values == {"CapEff:": f"{1 << 5:016x}", "NoNewPrivs:": "1", "Seccomp:": "2"}


async def test_only_privileged_namespaces_reach_the_node(world: World, pod: Callable[..., Any]) -> None:
    world.api.create_pod(pod(volumes=[{"name": "root", "hostPath": {"path": "/"}}]))
    await world.until(lambda: world.status("web")["phase"] == "Failed")
    status = world.status("web")
    assert status["reason"] == "PrivilegesNotAllowed"
    assert "hostPath of volume root is allowed in the namespaces of --privileged-namespaces only" in status["message"]
    assert not pods(world)


async def test_a_pod_is_a_real_container_with_the_expected_identity(
    world: World, pod: Callable[..., Any], cri: CriClient
) -> None:
    """The first command reads its cgroup; status, cgroup and the runtime's list agree about the container."""
    resources = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1500m", "memory": "64Mi"}}
    script = "cat /proc/self/cgroup; echo dir=$PWD a=$A host=$HOSTNAME pid=$$$$; ls /bin/busybox; exec sleep 1000"
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "resources": resources,
                 "env": [{"name": "A", "value": "1"}], "workingDir": "/usr"}  # fmt: skip
    manifest = pod(containers=[container], terminationGracePeriodSeconds=1)
    manifest["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    manifest["metadata"]["annotations"] = {"node.koordinator.sh/note": "kept"}
    world.api.create_pod(manifest)
    await world.until(lambda: world.status("web")["phase"] == "Running")
    info = main(world)
    assert world.container("web")["containerID"] == f"containerd://{info.id}"
    await world.until(lambda: len(lines(info)) >= len(world.tree.roots) + 2)
    *groups, where, busybox = lines(info)
    assert {line.split(":", 2)[2] for line in groups} == {f"/{info.cgroup}"}
    assert info.cgroup.endswith(f"/kubepods/burstable/pod{info.pod_uid}/{info.id}")
    assert where == "dir=/usr a=1 host=web pid=1"
    assert busybox == "/bin/busybox"
    if world.tree.version == 1:
        values = {name: (world.tree.dir("cpu", info.cgroup) / name).read_text().strip()
                  for name in ("cpu.shares", "cpu.cfs_quota_us")}  # fmt: skip
        assert values == {"cpu.shares": "256", "cpu.cfs_quota_us": "150000"}
        assert (world.tree.dir("memory", info.cgroup) / "memory.limit_in_bytes").read_text() == f"{64 << 20}\n"
    (sandbox,) = [s for s in await cri.list_pod_sandbox() if s.metadata.uid == info.pod_uid]
    assert sandbox.labels["koordinator.sh/qosClass"] == "BE"
    assert sandbox.labels["io.kubernetes.pod.name"] == "web"
    assert dict(sandbox.annotations) == {"node.koordinator.sh/note": "kept"}

    world.api.delete_pod("web")
    await world.until(lambda: world.api.pod("web") is None)
    assert not world.tree.exists(info.cgroup.rpartition("/")[0])
    await world.until(lambda: world.runtime.containers() == [])
    async with asyncio.timeout(60):
        while sandbox.id in {s.id for s in await cri.list_pod_sandbox()}:  # noqa: ASYNC110 - the last object to be removed
            await asyncio.sleep(0.02)


async def test_ends_of_containers_are_reported_and_handled(world: World, pod: Callable[..., Any]) -> None:
    containers = [
        {"name": "done", "image": "busybox", "command": ["sh", "-c", "echo said; exit 3"]},
        {"name": "missing", "image": "busybox", "command": ["no-such-program"]},
        {"name": "none", "image": "localhost/absent:1", "command": ["sh"]},
        {"name": "python", "image": "localhost/process:none",
         "command": ["python3", "-c", "import os; print('host', os.access('/usr', os.W_OK))"]},
    ]  # fmt: skip
    world.api.create_pod(pod(containers=containers, restartPolicy="Never"))
    states = {}

    def over() -> bool:
        nonlocal states
        states = {status["name"]: status["state"] for status in world.status("web").get("containerStatuses", ())}
        return all("terminated" in states.get(name, ()) for name in ("done", "missing", "python")) and (
            states["none"].get("waiting", {}).get("reason") == "ErrImagePull"
        )

    await world.until(over)
    assert states["done"]["terminated"]["exitCode"] == 3
    assert states["done"]["terminated"]["reason"] == "Error"
    assert lines(main(world, "done")) == ["said"]
    assert states["missing"]["terminated"]["reason"] == "ContainerCannotRun"
    assert "executable file not found" in states["missing"]["terminated"]["message"]
    assert states["python"]["terminated"]["exitCode"] == 0
    assert lines(main(world, "python")) == ["host False"]
    assert "localhost/absent:1" in states["none"]["waiting"]["message"]


async def test_probes_and_restarts_when_a_sandbox_was_killed(world: World, pod: Callable[..., Any]) -> None:
    probe = {"exec": {"command": ["sh", "-c", "cat /proc/1/cmdline >&2; exit 1"]}, "periodSeconds": 1}
    container = {"name": "main", "image": "busybox", "command": SLEEP, "readinessProbe": probe}
    world.api.create_pod(pod(containers=[container], terminationGracePeriodSeconds=1))
    await world.until(lambda: "Unhealthy" in world.events.reasons())
    message = next(m for _, _, reason, m in world.events.all if reason == "Unhealthy")
    assert "sleep" in message
    (sandbox,) = pods(world)
    for pid in world.tree.pids(sandbox.cgroup):
        os.kill(pid, signal.SIGKILL)
    await world.until(lambda: "SandboxChanged" in world.events.reasons())
    await world.until(lambda: pods(world) and pods(world)[0].id != sandbox.id)
    await world.until(lambda: main(world).attempt >= 1 and main(world).running)
    (sandbox,) = pods(world)
    assert (sandbox.attempt, sandbox.running) == (1, True)


async def test_a_new_kubelet_finds_existing_containers(
    world: World, pod: Callable[..., Any], containerd: Containerd, real_tree: CgroupTree, cri: CriClient
) -> None:
    containers = [
        {"name": "stays", "image": "busybox", "command": SLEEP},
        {
            "name": "ends",
            "image": "busybox",
            "command": ["sh", "-c", "trap 'exit 7' TERM; echo listens; while :; do sleep 0.1; done"],
        },
    ]
    world.api.create_pod(pod(containers=containers, restartPolicy="Never", terminationGracePeriodSeconds=1))
    await world.until(lambda: world.status("web")["phase"] == "Running")
    await world.until(lambda: lines(main(world, "ends")) == ["listens"])
    before = {i.name: i for i in world.runtime.containers()}
    await world.kubelet.stop()
    await world.runtime.close()
    await asyncio.sleep(0)  # from here on the kubelet is down
    await cri.stop_container(before["ends"].id, 60)
    await world.restart(runtime_of(containerd, real_tree))
    after = {i.name: i for i in world.runtime.containers()}
    for name in ("stays", "POD"):
        assert (after[name].id, after[name].cgroup) == (before[name].id, before[name].cgroup)
    assert after["stays"].log_path == before["stays"].log_path
    await world.until(lambda: "terminated" in world.container("web", 1)["state"])
    assert world.container("web", 1)["state"]["terminated"]["exitCode"] == 7
    await world.runtime.kill(after["stays"].id)
    await world.until(lambda: world.status("web")["phase"] == "Failed")


async def test_commands_in_a_container_and_its_log(
    containerd: Containerd, real_tree: CgroupTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For probes: output, exit codes, timeouts. A growing log is rotated."""
    monkeypatch.setattr("control.standalone.kubelet.runtimes.cri.ROTATE_SECONDS", 0.2)
    runtime, parent = runtime_of(containerd, real_tree, log_max_bytes=1000), containerd.cgroup_parent("pod")
    await runtime.load()
    try:
        log_path = tmp_path / "logs/main/0.log"
        await runtime.run_sandbox(SandboxConfig("s", "u1", f"{parent[1:]}/s", "web", "shop", log_dir=tmp_path / "logs"))
        script = "while :; do echo 0123456789; sleep 0.05; done"
        info = await runtime.start(
            ContainerConfig("c", "u1", "main", 0, "busybox", ["sh", "-c", script], {"A": "1"}, None, f"{parent[1:]}/c",
                            CgroupValues(shares=2), 1000, log_path)
        )  # fmt: skip
        result = await runtime.exec(info.id, ["sh", "-c", "echo $A; echo wrong >&2; exit 4"], 30)
        assert (result.code, result.output, result.timed_out) == (4, b"1\nwrong\n", False)
        late = await runtime.exec(info.id, ["sleep", "1000"], 1)
        assert late.timed_out, late
        absent = await runtime.exec(info.id, ["no-such-program"], 30)
        assert absent.code != 0 and b"no-such-program" in absent.output, absent
        async with asyncio.timeout(60):
            while not log_path.with_name("0.log.1").exists():  # noqa: ASYNC110 - changed by the runtime and the rotation
                await asyncio.sleep(0.05)
            while not log_path.exists() or b"0123456789" not in log_path.read_bytes():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        for container in runtime.containers():
            await runtime.remove(container.id)
        await runtime.close()
