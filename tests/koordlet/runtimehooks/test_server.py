"""The hook service in this process: socket, seven calls, errors, stop."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import (
    DESCRIPTOR,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordlet.prometheus import Registries
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.calls import ANNOUNCED, HookCalls
from koordlet.runtimehooks.protocols.server import CONTAINER, SANDBOX, RuntimeHookServer
from koordlet.runtimehooks.stages import FailurePolicy, HookAnswer, HookContext, HookError, Hooks, HookStage
from tests.koordlet.qosmanager.conftest import make_view


class Everywhere:
    """Answers every stage with the stage's index; fails for a pod named bad."""

    hook, gate, stages = "everywhere", "none", tuple(HookStage)

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        if context.pod.meta.name == "bad":
            raise HookError("no")
        return HookAnswer(cpu_shares=list(HookStage).index(stage) + 2)


def serve(path: Path, follow: Any = lambda: None, policy: FailurePolicy = FailurePolicy.FAIL) -> RuntimeHookServer:
    registries = Registries()
    hooks = Hooks([Everywhere()], registries, policy=policy)
    announced = AnnouncedPods(dict, lambda: "kubepods", lambda: 0.0)
    calls = HookCalls(hooks, announced, make_view, follow, registries, round_timeout=60.0)
    return RuntimeHookServer(path, calls, "containerd", grace=60.0)


async def call_hook(path: Path, stage: HookStage, name: str = "p") -> Any:
    sandbox = stage in SANDBOX
    request_type, response_type = (
        (PodSandboxHookRequest, PodSandboxHookResponse)
        if sandbox
        else (ContainerResourceHookRequest, ContainerResourceHookResponse)
    )
    request = request_type(pod_meta={"name": name, "namespace": "ns", "uid": "1"})
    if sandbox:
        request.cgroup_parent = "/kubepods/pod1"  # type: ignore[union-attr]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{stage}Hook", request_type.SerializeToString, response_type.FromString)
        return await call(request, timeout=60.0)


async def test_every_stage_has_a_call(tmp_path: Path) -> None:
    path = tmp_path / "made/k.sock"
    server = serve(path)
    await server.start()
    try:
        assert server.problem == ""
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for place, stage in enumerate(HookStage):
            if stage in SANDBOX:
                assert (await call_hook(path, stage)).resources.cpu_shares == place + 2
            elif stage in CONTAINER:
                assert (await call_hook(path, stage)).container_resources.cpu_shares == place + 2
        with pytest.raises(grpc.RpcError) as refused:
            await call_hook(path, HookStage.PRE_REMOVE_RUN_POD_SANDBOX)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as failed:
            await call_hook(path, HookStage.PRE_CREATE_CONTAINER, "bad")
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert failed.value.details() == "hook everywhere, pod ns/bad, container : no"
    finally:
        await server.stop()
    assert (server.problem, path.exists()) == ("stopped", False)


async def test_an_old_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run/k.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    server = serve(path)
    await server.start()
    try:
        assert (await call_hook(path, HookStage.PRE_RUN_POD_SANDBOX)).resources.cpu_shares == 2
    finally:
        await server.stop()


@pytest.mark.parametrize("name", ["no/where/k.sock", "file"], ids=["no directory", "a file in its place"])
async def test_a_socket_that_cannot_be_created_is_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    (tmp_path / "file").write_text("mine")
    server = serve(path)
    await server.start()
    assert server.problem.startswith(f"{path}: ")
    await server.stop()
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_call_that_runs_at_the_stop_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    begun = asyncio.Event()
    server = serve(path, begun.set)
    server._calls._earliest[ANNOUNCED] = server._calls._clock() + 0.5  # the round runs while the server stops
    await server.start()
    call = asyncio.ensure_future(call_hook(path, HookStage.PRE_RUN_POD_SANDBOX))
    while not len(server._calls.announced):  # noqa: ASYNC110 - there is no notification of it
        await asyncio.sleep(0.01)
    await server.stop()
    assert begun.is_set()
    assert (await call).resources.cpu_shares == 2


async def test_reflection_describes_the_service(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    server = serve(path)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(
            f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(timeout=60.0)
            await call.write(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())  # file_containing_symbol
            assert DESCRIPTOR.serialized_pb in await call.read()
    finally:
        await server.stop()


async def test_a_living_servers_socket_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    first, second = serve(path), serve(path)
    await first.start()
    try:
        await second.start()
        assert second.problem == f"{path}: another process listens at this socket"
        await second.stop()
        assert (await call_hook(path, HookStage.PRE_RUN_POD_SANDBOX)).resources.cpu_shares == 2
    finally:
        await first.stop()


async def test_a_removed_socket_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    server = serve(path)
    await server.start()
    try:
        path.unlink()
        await server.watch()
        assert server.problem == ""
        assert (await call_hook(path, HookStage.PRE_RUN_POD_SANDBOX)).resources.cpu_shares == 2
    finally:
        await server.stop()


async def test_a_replaced_socket_is_reported_and_left_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    server = serve(path)
    await server.start()
    try:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.bind(str(path))
            stranger.listen()
            await server.watch()
            assert server.problem == f"{path}: another process listens at this socket"
        await server.watch()
        assert server.problem == ""
    finally:
        await server.stop()
