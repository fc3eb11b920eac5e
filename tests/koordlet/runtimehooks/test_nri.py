"""koordlet as an NRI plugin of a fake runtime that is as strict as containerd: registration, events, adjustments,
updates, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.nri import RUNTIME
from koordlet.api.nri import api_pb2 as pb
from koordlet.runtimehooks.protocols.nri import NRIPlugin, NRISettings, configured, event_mask
from koordlet.runtimehooks.protocols.ttrpc import Trunk, TtrpcCallError
from koordlet.runtimehooks.stages import (
    WRITABLE,
    ContainerDevice,
    ContainerMount,
    FailurePolicy,
    HookAnswer,
    HookContext,
    HookStage,
    MountDirectory,
)
from tests.koordlet.runtimehooks import fake_runtime as fake
from tests.koordlet.runtimehooks.hooknode import EXTENDED, GIB, PATIENCE, Node
from tests.waiting import until


class Extra:
    """A plugin that returns all other kinds of values."""

    hook, gate = "extra", "none"
    stages = (HookStage.PRE_CREATE_CONTAINER,)

    def __init__(self, fresh: str = "") -> None:
        self.contexts: list[HookContext] = []
        own = ContainerMount(fresh, "/cache", options=WRITABLE, directory=MountDirectory.FRESH)
        self._fresh = (own,) if fresh else ()

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        self.contexts.append(context)
        return HookAnswer(
            env={"B": "2", "A": "1"},
            mounts=(ContainerMount("/lib.so", "/lib.so"), *self._fresh),
            devices=(ContainerDevice("/dev/infiniband/rdma_cm", "c", 10, 57, 0o660),),
            closid="koordlet-1",
            cpuset="0-1",
        )


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a koordlet's plugin; it is stopped with the test."""
    plugins: list[NRIPlugin] = []

    async def start(node: Node, **settings: Any) -> NRIPlugin:
        timings = {"connect": PATIENCE, "pause": 0.01, "longest": 0.05, **settings}
        plugin = NRIPlugin(NRISettings(tmp_path / "nri.sock", **timings), node.calls, "containerd")
        await plugin.start()
        plugins.append(plugin)
        return plugin

    yield start
    for plugin in plugins:
        await plugin.stop()


def pod(annotation: str = EXTENDED, parent: str = "/kubepods/besteffort/pod1") -> pb.PodSandbox:
    return pb.PodSandbox(
        id="sandbox",
        name="job",
        uid="1",
        namespace="default",
        labels={"koordinator.sh/qosClass": "BE"},
        annotations={"node.koordinator.sh/extended-resource-spec": annotation},
        linux={"cgroup_parent": parent},
    )


def create(annotation: str = EXTENDED, **container: Any) -> pb.CreateContainerRequest:
    own = {"id": "abc", "name": "c", **container}
    return pb.CreateContainerRequest(pod=pod(annotation), container=own)


async def configured_plugin(runtime: Any) -> Any:
    await until(lambda: runtime.plugins)
    return runtime.plugins[-1]


async def test_it_registers_and_subscribes(tmp_path: Path, connect: Callable[..., Any]) -> None:
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        plugin = await connect(Node())
        configured = await configured_plugin(runtime)
        assert (configured.index, configured.name) == ("00", "koordlet_nri")
        assert configured.events == event_mask(
            ["RunPodSandbox", "RemovePodSandbox", "CreateContainer", "UpdateContainer"]
        )
        assert configured.events == 0b1000_1101
        await until(lambda: plugin.problem == "")


@pytest.mark.parametrize("older", [True, False], ids=["as a state change", "as a call"])
async def test_a_pod_is_set_up_when_its_call_returns(tmp_path: Path, connect: Callable[..., Any], older: bool) -> None:
    node = Node()
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(node)
        plugin = await configured_plugin(runtime)

        async def report(event: int, method: str) -> bytes:
            if older:
                result: bytes = await plugin.call("StateChange", pb.StateChangeEvent(event=event, pod=pod()))  # type: ignore[arg-type]
            else:
                result = await plugin.call(method, pb.PodRequest(pod=pod()))
            return result

        assert await report(pb.RUN_POD_SANDBOX, "RunPodSandbox") == b""
        assert (node.rounds, [announced.meta.uid for announced in node.announced.current()]) == (1, ["1"])
        assert await report(pb.REMOVE_POD_SANDBOX, "RemovePodSandbox") == b""
        assert len(node.announced) == 0


async def test_a_container_is_adjusted(tmp_path: Path, connect: Callable[..., Any]) -> None:
    fresh = tmp_path / "containers/1_c"
    (fresh / "old").mkdir(parents=True)
    extra = Extra(str(fresh))
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node(extra))
        plugin = await configured_plugin(runtime)
        adjust = pb.CreateContainerResponse.FromString(await plugin.call("CreateContainer", create())).adjust
    resources = adjust.linux.resources
    assert (resources.cpu.shares.value, resources.cpu.quota.value, resources.cpu.cpus) == (512, 50_000, "0-1")
    assert (resources.memory.limit.value, resources.rdt_class.value) == (GIB, "koordlet-1")
    assert [(variable.key, variable.value) for variable in adjust.env] == [("A", "1"), ("B", "2")]
    assert [(mount.source, mount.destination, mount.type, list(mount.options)) for mount in adjust.mounts] == [
        ("/lib.so", "/lib.so", "bind", ["rbind", "ro", "nosuid", "nodev"]),
        (str(fresh), "/cache", "bind", ["rbind", "rw", "nosuid", "nodev", "noexec"]),
    ]
    (device,) = adjust.linux.devices
    assert (device.path, device.type, device.major, device.minor, device.file_mode.value) == (
        "/dev/infiniband/rdma_cm", "c", 10, 57, 0o660,
    )  # fmt: skip
    assert list(fresh.iterdir()) == []
    assert fresh.stat().st_mode & 0o7777 == 0o1777
    (context,) = extra.contexts
    assert context.container is not None
    assert context.container.id == "containerd://abc"


async def test_a_container_without_changes(tmp_path: Path, connect: Callable[..., Any]) -> None:
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node())
        plugin = await configured_plugin(runtime)
        adjust = pb.CreateContainerResponse.FromString(await plugin.call("CreateContainer", create("{}"))).adjust
        assert adjust == pb.ContainerAdjustment()
        request = pb.UpdateContainerRequest(pod=pod("{}"), container={"id": "abc", "name": "c"})
        assert not pb.UpdateContainerResponse.FromString(await plugin.call("UpdateContainer", request)).update


async def test_an_update_names_its_container_and_starts_from_the_request(
    tmp_path: Path, connect: Callable[..., Any]
) -> None:
    """Fields that koordlet does not know (for example a swap limit) are returned unchanged."""
    swap = bytes([0x0A, 0x04, 0x1A, 0x02, 0x08, 0x05])  # memory { swap { value: 5 } }
    requested = pb.LinuxResources.FromString(swap)
    requested.cpu.quota.value = 10_000
    requested.cpu.period.value = 50_000
    requested.cpu.cpus = "3"
    request = pb.UpdateContainerRequest(pod=pod(), container={"id": "abc", "name": "c"}, linux_resources=requested)
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node())
        plugin = await configured_plugin(runtime)
        answer = pb.UpdateContainerResponse.FromString(await plugin.call("UpdateContainer", request))
    (update,) = answer.update
    resources = update.linux.resources
    assert update.container_id == "abc"
    assert (resources.cpu.shares.value, resources.cpu.quota.value, resources.cpu.period.value) == (512, 50_000, 100_000)
    assert (resources.cpu.cpus, resources.memory.limit.value) == ("3", GIB)
    assert bytes([0x1A, 0x02, 0x08, 0x05]) in resources.SerializeToString()


async def test_events_without_an_action_are_accepted_and_unknown_ones_refused(
    tmp_path: Path, connect: Callable[..., Any]
) -> None:
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node())
        plugin = await configured_plugin(runtime)
        for method in ("StopContainer", "StartContainer", "StopPodSandbox", "RemoveContainer", "Shutdown"):
            assert await plugin.call(method, pb.PodRequest(pod=pod())) == b""
        event = pb.StateChangeEvent(event=pb.POST_START_CONTAINER, pod=pod())
        assert await plugin.call("StateChange", event) == b""
        for service, method in (("nri.pkg.api.v1alpha1.Plugin", "Dance"), (RUNTIME, "CreateContainer")):
            with pytest.raises(RuntimeError, match="12: no method"):
                await plugin.call(method, pb.Empty(), service=service)


async def test_a_failing_hook_by_policy(tmp_path: Path, connect: Callable[..., Any]) -> None:
    for policy in FailurePolicy:
        async with fake.Runtime(tmp_path / "nri.sock") as runtime:
            plugin = await connect(Node(policy=policy))
            configured = await configured_plugin(runtime)
            if policy is FailurePolicy.IGNORE:
                assert await configured.call("CreateContainer", create("{")) in (b"", b"\n\x00")
                bad = pb.PodRequest(pod=pod(parent="/kubepods/../x"))
                assert await configured.call("RunPodSandbox", bad) == b""
            else:
                with pytest.raises(RuntimeError, match=r"default/job, container c.*extended-resource-spec"):
                    await configured.call("CreateContainer", create("{"))
            await plugin.stop()
        (tmp_path / "nri.sock").unlink(missing_ok=True)


async def test_large_messages_come_in_pieces_both_ways(tmp_path: Path, connect: Callable[..., Any]) -> None:
    class Long(Extra):
        def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
            return HookAnswer(env={f"V{number}": "x" * 1000 for number in range(40)})

    request = create(env=[f"N{number}={'y' * 1000}" for number in range(60)])
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node(Long()))
        plugin = await configured_plugin(runtime)
        answer = pb.CreateContainerResponse.FromString(await plugin.call("CreateContainer", request))
        assert len(answer.adjust.env) == 40
        assert runtime.refused == []


async def test_a_lost_connection_is_opened_again(tmp_path: Path, connect: Callable[..., Any]) -> None:
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        plugin = await connect(Node())
        for number in (1, 2, 3):
            await until(lambda number=number: len(runtime.plugins) == number)
            runtime.plugins[-1].hang_up()
        await until(lambda: len(runtime.plugins) == 4)
        await until(lambda: plugin.problem == "")


REFUSED = {
    "an invalid index": ({"index": "7"}, "", "invalid plugin index 7: must be two digits"),
    "no name": ({"name": ""}, "", "invalid plugin name"),
    "a configuration that is not YAML": ({}, "events: [", "failed to configure plugin: 3: configuration"),
    "an unknown event": ({}, "events: [Dance]", "unknown event 'Dance'"),
}


@pytest.mark.parametrize(("settings", "config", "reason"), REFUSED.values(), ids=REFUSED)
async def test_a_refused_plugin_reports_the_reason_and_retries(
    tmp_path: Path, connect: Callable[..., Any], settings: dict[str, Any], config: str, reason: str
) -> None:
    async with fake.Runtime(tmp_path / "nri.sock", config=config) as runtime:
        plugin = await connect(Node(), **settings)
        await until(lambda: len(runtime.refused) >= 2)
        assert reason in runtime.refused[0]
        assert plugin.problem != ""


async def test_a_runtime_that_never_responds_is_disconnected(tmp_path: Path, connect: Callable[..., Any]) -> None:
    async with fake.Runtime(tmp_path / "nri.sock", silent=True) as runtime:
        plugin = await connect(Node(), connect=0.05)
        await until(lambda: runtime.connections >= 3)
        await until(lambda: plugin.problem == "no answer in time")


async def test_without_a_socket_there_is_no_nri(tmp_path: Path, connect: Callable[..., Any]) -> None:
    plugin = await connect(Node())
    await until(lambda: plugin.problem == f"no socket {tmp_path / 'nri.sock'}")


@pytest.mark.parametrize(
    "data",
    [b"\x00\x00\x00\x01\xff\xff\xff\xff", b"\x00\x00\x00\x01\x00\x00\x00\x0a\x00\xff\xff\xff\x00\x00\x00\x01\x01\x00"],
    ids=["a frame too long", "a message too long"],
)
async def test_invalid_data_of_the_runtime_ends_only_the_connection(
    tmp_path: Path, connect: Callable[..., Any], data: bytes
) -> None:
    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node())
        plugin = await configured_plugin(runtime)
        plugin.writer.write(data)
        await until(lambda: len(runtime.plugins) == 2)


async def test_a_call_that_cannot_be_parsed_is_refused(tmp_path: Path, connect: Callable[..., Any]) -> None:
    class Broken:
        def SerializeToString(self) -> bytes:
            return b"\xff\xff\xff"

    async with fake.Runtime(tmp_path / "nri.sock") as runtime:
        await connect(Node())
        plugin = await configured_plugin(runtime)
        with pytest.raises(RuntimeError, match="3: CreateContainer"):
            await plugin.call("CreateContainer", Broken())


def test_the_events_of_a_configuration() -> None:
    assert configured("") == configured("other: 1") == configured("events: []")
    assert configured("events: [runpodsandbox]") == ["runpodsandbox"]
    assert event_mask(["createcontainer", "CreateContainer"]) == 0b1000
    for text in ("events: 5", "events: [5]", "- a"):
        with pytest.raises(TtrpcCallError, match="events must be a list of names"):
            configured(text)


def test_pauses_between_attempts_grow_to_a_maximum() -> None:
    settings = NRISettings(Path("/none"))
    assert [settings.pause_after(failures) for failures in (0, 1, 2, 10, 10**6)] == [1, 2, 4, 60, 60]


@given(st.binary(max_size=20_000), st.integers(0, 2**31))
def test_any_message_comes_through_a_runtimes_buffer(body: bytes, stream: int) -> None:
    """A strict reader reads the frames that koordlet writes, for any length."""

    async def through() -> tuple[int, int, bytes]:
        reader, connection = asyncio.StreamReader(), fake.Connection()
        await Trunk(reader, _FrameWriter(connection), _refuse)._send(2, stream, 1, body)  # type: ignore[arg-type]
        return await connection.message()

    assert asyncio.run(through()) == (stream, 1, body)


class _FrameWriter:
    """Writes frames to a connection of the fake runtime."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def write(self, frame: bytes) -> None:
        self._connection.feed(frame[8:])

    async def drain(self) -> None:
        return


async def _refuse(service: str, method: str, payload: bytes, seconds: float | None) -> bytes:
    raise TtrpcCallError("refused")
