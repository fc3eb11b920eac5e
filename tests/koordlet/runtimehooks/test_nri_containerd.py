"""koordlet as an NRI plugin of a real containerd: its settings hold from a container's first instruction."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient, CriError
from koordlet.api.cri.api_pb2 import UpdateContainerResourcesRequest
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from koordlet.api.nri import api_pb2 as pb
from koordlet.runtimehooks.protocols import nri
from koordlet.runtimehooks.protocols.nri import NRIPlugin, NRISettings
from koordlet.runtimehooks.stages import (
    ContainerDevice,
    ContainerMount,
    FailurePolicy,
    HookAnswer,
    HookContext,
    HookStage,
)
from tests.koordlet.runtimehooks.hooknode import EXTENDED, GIB, PATIENCE, Node
from tests.runtimes.daemons import running
from tests.runtimes.nri import NRIContainerd
from tests.runtimes.pods import container_config, sandbox_config
from tests.waiting import until

pytestmark = pytest.mark.runtime

LABELS = {"koordinator.sh/qosClass": "BE"}
LOOK = """
for file in cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us memory/memory.limit_in_bytes cpuset/cpuset.cpus
do read -r value </sys/fs/cgroup/$file; echo "look $file $value"; done
echo "look env $FROM_HOOK"
echo "look cache $(cat /cache/told)"
echo "look device $(ls -l /dev/koord-null)"
exec sleep 1000000
"""
ASKED = LinuxContainerResources(
    cpu_period=100_000, cpu_quota=10_000, cpu_shares=2, memory_limit_in_bytes=32 << 20, cpuset_cpus="0"
)


class Extra:
    """A plugin that returns values that only NRI supports."""

    hook, gate = "extra", "none"
    stages = (HookStage.PRE_CREATE_CONTAINER,)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        return HookAnswer(
            env={"FROM_HOOK": "yes"},
            mounts=(ContainerMount(str(self._folder), "/cache"),),
            devices=(ContainerDevice("/dev/koord-null", "c", 1, 3, 0o666),),
        )


class Recorded(NRIPlugin):
    """Records the calls of the runtime."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.called: list[tuple[str, bytes]] = []

    async def handle(self, service: str, method: str, payload: bytes, seconds: float | None) -> bytes:
        self.called.append((method, payload))
        return await super().handle(service, method, payload, seconds)

    @property
    def methods(self) -> list[str]:
        """In order; state changes by the name of their event."""
        return [
            pb.Event.Name(pb.StateChangeEvent.FromString(payload).event) if method == "StateChange" else method
            for method, payload in self.called
        ]


class Scene:
    """A containerd, its client, and plugins that are stopped with the test."""

    def __init__(self, daemon: NRIContainerd, client: CriClient, folder: Path) -> None:
        self.daemon, self.client, self.folder = daemon, client, folder
        self._base = f"{daemon.cgroup_parent()}/kubepods"
        self._plugins: list[NRIPlugin] = []

    def node(self, *plugins: Any, policy: FailurePolicy = FailurePolicy.IGNORE) -> Node:
        """A koordlet for the pods of this runtime."""
        return Node(*plugins, policy=policy, base=self._base.strip("/"))

    async def connect(self, node: Node, *, wait: bool = True, socket: Path | None = None) -> Recorded:
        settings = NRISettings(socket or self.daemon.nri, connect=PATIENCE, pause=0.01, longest=0.05)
        plugin = Recorded(settings, node.calls, "containerd")
        await plugin.start()
        self._plugins.append(plugin)
        if wait:
            await until(lambda: plugin.problem == "")
        return plugin

    async def pod(self, name: str, annotation: str = EXTENDED) -> tuple[str, Any]:
        parent = f"{self._base}/besteffort/pod{name}"
        annotations = {"node.koordinator.sh/extended-resource-spec": annotation}
        config = sandbox_config(parent, name=name, uid=name, labels=LABELS, annotations=annotations)
        config.log_directory = str(self.folder)
        return await self.client.run_pod_sandbox(config), config

    async def container(self, sandbox: tuple[str, Any], command: str = LOOK, **how: Any) -> str:
        how = {"name": "c", "resources": ASKED, **how}
        config = container_config("/bin/sh", "-c", command, **how)
        config.log_path = f"{sandbox[1].metadata.name}.log"
        created = await self.client.create_container(sandbox[0], config, sandbox[1])
        await self.client.start_container(created)
        return created

    async def report(self, name: str) -> dict[str, str]:
        """The complete report that the pod's container writes about itself."""
        log = self.folder / f"{name}.log"

        def complete() -> dict[str, str]:
            report = dict(re.findall(r"stdout F look (\S+) ?(.*)", log.read_text() if log.exists() else ""))
            return report if "device" in report else {}

        read: dict[str, str] = await until(complete)
        return read

    async def close(self) -> None:
        for plugin in self._plugins:
            await plugin.stop()
        await self.client.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[NRIContainerd]:
    with running(NRIContainerd()) as server:
        yield server


@pytest.fixture
async def scene(daemon: NRIContainerd, tmp_path: Path) -> AsyncIterator[Scene]:
    (tmp_path / "told").write_text("by the host\n")
    scene = Scene(daemon, CriClient(str(daemon.socket)), tmp_path)
    yield scene
    await scene.close()
    await asyncio.to_thread(daemon.remove_pods)
    daemon.clear_parents()


WANTED = {
    "cpu/cpu.shares": "512",
    "cpu/cpu.cfs_quota_us": "50000",
    "cpu/cpu.cfs_period_us": "100000",
    "memory/memory.limit_in_bytes": str(GIB),
    "cpuset/cpuset.cpus": "0",
    "env": "yes",
    "cache": "by the host",
}


async def test_a_container_has_everything_at_its_first_instruction(scene: Scene) -> None:
    node = scene.node(Extra(scene.folder))
    await scene.connect(node)
    sandbox = await scene.pod("first")
    assert [pod.meta.uid for pod in node.announced.current()] == ["first"], "told of the pod before its containers"
    assert node.rounds == 1, "and its settings were in the kernel when RunPodSandbox returned"
    await scene.container(sandbox)
    report = await scene.report("first")
    assert {name: report[name] for name in WANTED} == WANTED
    assert re.match(r"crw-rw-rw-.* 1, +3 .*/dev/koord-null", report["device"]), report["device"]
    await scene.client.stop_pod_sandbox(sandbox[0])
    await scene.client.remove_pod_sandbox(sandbox[0])
    await until(lambda: len(node.announced) == 0)


async def test_without_koordlet_a_container_has_the_requested_values(scene: Scene) -> None:
    """This shows that the values in the other tests come from the plugin."""
    await scene.container(await scene.pod("alone"), LOOK.replace("$(cat /cache/told)", "").replace("$(ls", "$(echo"))
    report = await scene.report("alone")
    assert [report[name] for name in WANTED] == ["2", "10000", "100000", str(32 << 20), "0", "", ""]


async def test_an_update_contains_the_values_of_the_hooks(scene: Scene) -> None:
    await scene.connect(scene.node(Extra(scene.folder)))
    container = await scene.container(await scene.pod("updated"))
    await scene.report("updated")
    resources = LinuxContainerResources(cpu_period=50_000, cpu_quota=10_000, cpu_shares=2, cpuset_cpus="0")
    request = UpdateContainerResourcesRequest(container_id=container, linux=resources)
    await scene.client.call("UpdateContainerResources", request)
    files = "cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us memory/memory.limit_in_bytes"
    done = await scene.client.exec_sync(container, ["/bin/sh", "-c", f"cd /sys/fs/cgroup; cat {files}"])
    assert done.stdout.decode().split() == ["512", "50000", "100000", str(GIB)], done.stderr


async def test_messages_larger_than_the_buffer_of_containerd(scene: Scene) -> None:
    """Such messages are sent in pieces, in both directions."""

    class Long(Extra):
        def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
            return HookAnswer(env={f"V{number}": "x" * 1000 for number in range(60)})

    await scene.connect(scene.node(Long(scene.folder)))
    container = await scene.container(
        await scene.pod("long"), "exec sleep 1000000", envs=[(f"N{number}", "y" * 1000) for number in range(60)]
    )
    done = await scene.client.exec_sync(container, ["/bin/sh", "-c", "env | grep -c '^V[0-9]*=x\\{1000\\}$'"])
    assert done.stdout.decode().strip() == "60", done.stderr


async def test_with_policy_fail_a_pod_is_refused_with_the_reason(scene: Scene) -> None:
    plugin = await scene.connect(scene.node(policy=FailurePolicy.FAIL))
    with pytest.raises(CriError, match=r"default/refused.*extended-resource-spec"):
        await scene.pod("refused", "{")
    await scene.container(await scene.pod("fine"), "exec sleep 1000000")
    assert plugin.problem == "", "one refusal does not cost the connection"


async def test_a_malformed_annotation_prevents_no_start(scene: Scene) -> None:
    await scene.connect(scene.node(Extra(scene.folder)))
    await scene.container(await scene.pod("odd", "{"))
    report = await scene.report("odd")
    assert (report["cpu/cpu.shares"], report["env"]) == ("2", "yes"), "the other plugin's answer stands"


async def test_it_connects_when_the_runtime_starts_and_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri, "SOCKET_CHECK_S", 0.05)
    (tmp_path / "told").write_text("by the host\n")
    daemon = NRIContainerd()
    scene = Scene(daemon, CriClient(str(daemon.socket)), tmp_path)
    try:
        plugin = await scene.connect(scene.node(Extra(tmp_path)), wait=False)
        await until(lambda: plugin.problem.startswith("no socket"))
        await asyncio.to_thread(daemon.start)
        await asyncio.to_thread(daemon.import_images)
        await until(lambda: plugin.problem == "")
        sandbox = await scene.pod("before")
        created = await scene.container(sandbox)
        assert (await scene.report("before"))["cpu/cpu.shares"] == "512"

        await asyncio.to_thread(daemon.kill)
        await until(lambda: plugin.problem != "")
        await asyncio.to_thread(daemon.start)
        await until(lambda: plugin.problem == "")
        running = [container.id for container in await scene.client.list_containers()]
        assert running == [created], "what ran goes on"
        await scene.container(sandbox, name="side")
        await scene.container(await scene.pod("after"))
        assert (await scene.report("after"))["cpu/cpu.shares"] == "512"
    finally:
        await scene.close()
        await asyncio.to_thread(daemon.close)


async def test_the_runtimes_configuration_selects_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of events in the runtime's configuration replaces koordlet's. containerd 1.7 has configurations only for
    plugins that it starts itself, and sends the running containers only to plugins that connect."""
    monkeypatch.setattr(nri, "SOCKET_CHECK_S", 0.05)
    (tmp_path / "told").write_text("by the host\n")
    daemon = NRIContainerd()
    scene = Scene(daemon, CriClient(str(daemon.socket)), tmp_path)
    node = scene.node(Extra(tmp_path))
    try:
        relay = daemon.preinstall("00-koordlet_nri", "events: [CreateContainer]\n")
        plugin = await scene.connect(node, wait=False, socket=relay)
        await asyncio.to_thread(daemon.start)
        await asyncio.to_thread(daemon.import_images)
        sandbox = await scene.pod("listed")
        container = await scene.container(sandbox)
        assert (await scene.report("listed"))["cpu/cpu.shares"] == "512"
        assert plugin.methods == ["Configure", "CreateContainer"]

        await plugin.stop()
        await asyncio.to_thread(daemon.stop)
        daemon.no_plugins()
        await asyncio.to_thread(daemon.start)
        plugin = await scene.connect(node)
        assert "late" not in {pod.meta.uid for pod in node.announced.current()}
        late = await scene.pod("late")
        method, running = plugin.called[1]
        assert method == "Synchronize"
        assert sandbox[0].encode() in running
        assert container.encode() in running
        assert "late" in {pod.meta.uid for pod in node.announced.current()}
        await scene.container(late)
        await scene.client.stop_pod_sandbox(late[0])
        await scene.client.remove_pod_sandbox(late[0])
        await until(lambda: "late" not in {pod.meta.uid for pod in node.announced.current()})
        expected = ["Configure", "Synchronize", "RUN_POD_SANDBOX", "CreateContainer", "REMOVE_POD_SANDBOX"]
        assert plugin.methods == expected
    finally:
        await scene.close()
        await asyncio.to_thread(daemon.close)
