"""The kubelet's CRI requests, and its handling of missing responses and of events, without a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from control.standalone.containerd import hostimage
from control.standalone.containerd.hostimage import HOST_IMAGE, HostMount
from control.standalone.containerd.slices import expand
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.values import CgroupValues
from control.standalone.kubelet.runtimes import crirequests
from control.standalone.kubelet.runtimes.cri import CriRuntime
from control.standalone.kubelet.runtimes.criclient import CriClient
from control.standalone.kubelet.runtimes.crirequests import SwapAccounting
from control.standalone.kubelet.runtimes.runtime import (
    ContainerConfig,
    ContainerSecurity,
    PathMount,
    RuntimeContainer,
    RuntimeFailure,
    SandboxConfig,
)
from koordlet.api.cri import api_pb2 as cri

POD = SandboxConfig("s" * 64, "u1", f"kubepods/besteffort/podu1/{'s' * 64}", "web", "shop", {"app": "web"}, {"a": "b"})


def container(root: Path, **changes: Any) -> ContainerConfig:
    fields: dict[str, Any] = {
        "id": "c" * 64, "pod_uid": "u1", "name": "main", "attempt": 2, "image": "busybox", "argv": ["sh", "-c", "x"],
        "env": {"A": "1"}, "cwd": None, "cgroup": f"kubepods/besteffort/podu1/{'c' * 64}",
        "values": CgroupValues(shares=2), "oom_score_adj": 1000, "log_path": root / "logs/main/2.log",
    }  # fmt: skip
    return ContainerConfig(**{**fields, **changes})


def test_a_sandbox_has_the_pods_identity() -> None:
    request = crirequests.sandbox(POD, 3)
    assert (request.metadata.name, request.metadata.namespace, request.metadata.uid, request.metadata.attempt) == (
        "web", "shop", "u1", 3,
    )  # fmt: skip
    assert request.labels == {
        "app": "web",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "u1",
    }
    assert request.annotations == {"a": "b"}
    assert request.linux.cgroup_parent == "/kubepods/besteffort/podu1"
    assert request.linux.security_context.namespace_options.network == cri.NODE


def test_mounts_and_security_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crirequests, "may_protect", lambda: True)
    security = ContainerSecurity(
        add=("BPF", "SYS_RESOURCE"), drop=("ALL",), read_only_root=True, no_new_privileges=True,
        seccomp="RuntimeDefault", host_pid=True,
    )  # fmt: skip
    pod = crirequests.sandbox(replace(POD, security=ContainerSecurity(host_pid=True)), 0)
    pod.log_directory = str(tmp_path / "logs")
    assert pod.linux.security_context.namespace_options.pid == cri.NODE
    config = container(tmp_path, mounts=[PathMount("/a", "/b", True, "HostToContainer")], security=security)
    request = crirequests.container(config, pod, SwapAccounting(1, False), [])
    (mount,) = request.mounts
    assert (mount.host_path, mount.container_path, mount.readonly) == ("/a", "/b", True)
    assert mount.propagation == cri.PROPAGATION_HOST_TO_CONTAINER
    context = request.linux.security_context
    assert list(context.capabilities.add_capabilities) == ["BPF", "SYS_RESOURCE"]
    assert list(context.capabilities.drop_capabilities) == ["ALL"]
    assert context.readonly_rootfs and context.no_new_privs and not context.privileged
    assert context.HasField("seccomp") and context.seccomp.profile_type == cri.SecurityProfile.RuntimeDefault
    assert context.namespace_options.pid == cri.NODE
    monkeypatch.setattr(crirequests, "may_protect", lambda: False)
    request = crirequests.container(config, pod, SwapAccounting(1, False), [])
    assert list(request.linux.security_context.capabilities.add_capabilities) == ["BPF"], "runc lacks the other"


def test_a_container_request_has_image_log_and_resources(tmp_path: Path) -> None:
    pod = crirequests.sandbox(POD, 0)
    pod.log_directory = str(tmp_path / "logs")
    request = crirequests.container(container(tmp_path), pod, SwapAccounting(1, False), [HostMount("/usr")])
    assert (list(request.command), list(request.args), request.log_path) == (["sh", "-c", "x"], [], "main/2.log")
    assert not request.mounts and not request.linux.security_context.HasField("run_as_user")
    assert request.metadata.attempt == 2
    plain = container(tmp_path, has_program=False, image=HOST_IMAGE, group=7, cwd="/usr")
    other = crirequests.container(plain, pod, SwapAccounting(1, False), [HostMount("/usr")])
    assert (list(other.command), list(other.args), other.working_dir) == ([], ["sh", "-c", "x"], "/usr")
    assert [(m.host_path, m.container_path, m.readonly) for m in other.mounts] == [("/usr", "/usr", True)]
    security = other.linux.security_context
    assert (security.run_as_user.value, security.run_as_group.value) == (0, 7), "CRI accepts no group without a user"


GIB = 1 << 30


@pytest.mark.parametrize(
    ("values", "swap", "expected"),
    [
        (CgroupValues(shares=512, quota=50_000, memory=GIB, oom_group=True, no_swap=True), SwapAccounting(1, True),
         (512, 50_000, GIB, GIB, {})),
        (CgroupValues(shares=512, memory=GIB, oom_group=True, no_swap=True), SwapAccounting(1, False),
         (512, 0, GIB, 0, {})),
        (CgroupValues(shares=2, memory=GIB, oom_group=True, no_swap=True), SwapAccounting(2, True),
         (2, 0, GIB, 0, {"memory.oom.group": "1", "memory.swap.max": "0"})),
        (CgroupValues(shares=2), SwapAccounting(2, True), (2, 0, 0, 0, {})),
    ],
    ids=["v1", "v1 without swap accounting", "v2", "sandbox"],
)  # fmt: skip
def test_resources(values: CgroupValues, swap: SwapAccounting, expected: Any) -> None:
    resources = crirequests.resources(values, -5, swap)
    assert (
        resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes,
        resources.memory_swap_limit_in_bytes, dict(resources.unified)
    ) == expected  # fmt: skip
    assert (resources.cpu_period, resources.oom_score_adj) == (100_000, -5)


@pytest.mark.parametrize(
    ("info", "cgroup"),
    [
        ('{"runtimeSpec": {"linux": {"cgroupsPath": "/kubepods/podu/c"}}}', "kubepods/podu/c"),
        ('{"runtimeSpec": {"linux": {"cgroupsPath": "kubepods-podu.slice:cri-containerd:c"}}}',
         "kubepods.slice/kubepods-podu.slice/cri-containerd-c.scope"),
        ('{"runtimeSpec": {}}', ""),
        ("nonsense", ""),
    ],
    ids=["path", "slice", "without", "malformed"],
)  # fmt: skip
def test_the_cgroup_of_a_known_container(info: str, cgroup: str) -> None:
    assert crirequests.cgroup_of({"info": info}) == cgroup


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("a.slice:p:id", "/a.slice/p-id.scope"),
        ("a-b-c.slice:p:id", "/a.slice/a-b.slice/a-b-c.slice/p-id.scope"),
        ("a.slice::id", "/a.slice/id.scope"),
        ("/kubepods/pod:x:y/id", "/kubepods/pod:x:y/id"),
        ("", ""),
    ],
)
def test_slices_are_expanded_as_systemd_does(path: str, expanded: str) -> None:
    assert expand(path) == expanded


def test_host_mounts_have_no_links_and_no_duplicates(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("")
    (tmp_path / "srv/code/venv").mkdir(parents=True)
    extra = [Path("/srv/code/venv"), Path("/srv/code"), Path("/usr/lib/python"), Path("/absent")]
    paths = [mount.path for mount in hostimage.mounts(tmp_path, extra)]
    assert paths == ["/lib", "/usr", "/etc/passwd", "/srv/code"]


class FakeCri:
    """A CRI server in this process, with sandboxes and containers in dictionaries and configurable responses."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sandboxes: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self.events: asyncio.Queue[Any] | None = None
        """None: the runtime knows no events."""
        self.lose: set[str] = set()
        """Methods that are carried out and whose caller hears nothing of it, once."""

    async def handle(self, name: str, body: bytes, context: Any) -> Any:
        self.calls.append(name)
        answer = getattr(self, name)(body)
        if name in self.lose:
            self.lose.discard(name)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy was killed")
        return answer

    def Version(self, _: bytes) -> Any:
        return cri.VersionResponse(runtime_name="fake", runtime_version="1")

    def ListPodSandbox(self, _: bytes) -> Any:
        return cri.ListPodSandboxResponse(items=self.sandboxes.values())

    def ListContainers(self, _: bytes) -> Any:
        return cri.ListContainersResponse(containers=self.containers.values())

    def RunPodSandbox(self, body: bytes) -> Any:
        config = cri.RunPodSandboxRequest.FromString(body).config
        name = f"sandbox-{len(self.calls)}"
        self.sandboxes[name] = cri.PodSandbox(id=name, metadata=config.metadata, labels=config.labels)
        return cri.RunPodSandboxResponse(pod_sandbox_id=name)

    def CreateContainer(self, body: bytes) -> Any:
        message = cri.CreateContainerRequest.FromString(body)
        name = f"container-{len(self.calls)}"
        self.containers[name] = cri.Container(
            id=name,
            pod_sandbox_id=message.pod_sandbox_id,
            metadata=message.config.metadata,
            labels=message.config.labels,
        )
        return cri.CreateContainerResponse(container_id=name)

    def StartContainer(self, body: bytes) -> Any:
        self.containers[cri.ContainerRequest.FromString(body).container_id].state = cri.CONTAINER_RUNNING
        return cri.ContainerRequest()

    def RemoveContainer(self, body: bytes) -> Any:
        del self.containers[cri.ContainerRequest.FromString(body).container_id]
        return cri.ContainerRequest()

    def StopPodSandbox(self, _: bytes) -> Any:
        return cri.PodSandboxRequest()

    def RemovePodSandbox(self, body: bytes) -> Any:
        del self.sandboxes[cri.PodSandboxRequest.FromString(body).pod_sandbox_id]
        return cri.PodSandboxRequest()

    def ContainerStatus(self, body: bytes) -> Any:
        container = self.containers[cri.ContainerStatusRequest.FromString(body).container_id]
        return cri.ContainerStatusResponse(
            status=cri.ContainerStatus(
                id=container.id, state=container.state, started_at=1, finished_at=2, exit_code=137
            )
        )

    async def follow(self, _: bytes, context: Any) -> AsyncIterator[Any]:
        if self.events is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "method GetContainerEvents not implemented")
        assert self.events is not None
        while True:
            yield await self.events.get()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fake: FakeCri) -> None:
        self._fake = fake

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name == "GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(
                self._fake.follow, response_serializer=lambda message: message.SerializeToString()
            )

        async def answer(body: bytes, context: Any) -> Any:
            return await self._fake.handle(name, body, context)

        return grpc.unary_unary_rpc_method_handler(
            answer, response_serializer=lambda message: message.SerializeToString()
        )


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeCri]:
    cri = FakeCri()
    server = grpc.aio.server(handlers=[_Handlers(cri)])
    server.add_insecure_port(f"unix:{tmp_path}/cri.sock")
    await server.start()
    yield cri
    await server.stop(None)


@pytest.fixture
async def runtime(fake: FakeCri, tmp_path: Path) -> AsyncIterator[Callable[..., CriRuntime]]:
    runtimes: list[CriRuntime] = []

    def make(poll: float = 0.05) -> CriRuntime:
        tree = CgroupTree(2, {"": tmp_path})
        runtimes.append(CriRuntime(CriClient(str(tmp_path / "cri.sock")), tree, 1 << 20, 3, poll=poll))
        return runtimes[-1]

    yield make
    for runtime_made in runtimes:
        await runtime_made.close()


async def soon(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 - changed by the server
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("served", [True, False], ids=["events", "polling"])
async def test_an_end_is_reported_once(fake: FakeCri, runtime: Any, tmp_path: Path, served: bool) -> None:
    fake.events = asyncio.Queue() if served else None
    cri_runtime = runtime()
    ended: list[Any] = []
    cri_runtime.on_exit(ended.append)
    await cri_runtime.load()
    await cri_runtime.run_sandbox(SandboxConfig("s", "u1", "pod/s", "web", "shop", log_dir=tmp_path / "logs"))
    info = await cri_runtime.start(container(tmp_path))
    assert info.running and info.cgroup == f"kubepods/besteffort/podu1/{info.id}"
    fake.containers[info.id].state = cri.CONTAINER_EXITED
    if fake.events is not None:
        for kind in (cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STOPPED_EVENT, cri.CONTAINER_STOPPED_EVENT):
            fake.events.put_nowait(cri.ContainerEventResponse(container_id=info.id, container_event_type=kind))
    await soon(lambda: ended)
    await cri_runtime.kill(info.id)
    (end,) = ended
    assert isinstance(end, RuntimeContainer)
    assert (end.id, end.exit_code, end.signal, end.reason) == (info.id, 137, 9, "Error")


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer"])
async def test_the_result_of_an_unanswered_call_is_removed_before_the_next_attempt(
    fake: FakeCri, runtime: Any, tmp_path: Path, method: str
) -> None:
    cri_runtime, sandbox = runtime(), SandboxConfig("s", "u1", "pod/s", "web", "shop", log_dir=tmp_path / "logs")
    await cri_runtime.load()
    if method == "RunPodSandbox":
        fake.lose.add(method)
        with pytest.raises(RuntimeFailure, match="the proxy was killed"):
            await cri_runtime.run_sandbox(sandbox)
    await cri_runtime.run_sandbox(sandbox)
    assert len(fake.sandboxes) == 1
    if method == "CreateContainer":
        fake.lose.add(method)
        with pytest.raises(RuntimeFailure, match="the proxy was killed"):
            await cri_runtime.start(container(tmp_path))
    elif method == "StartContainer":
        fake.lose.add(method)  # the runtime is queried: the container runs
    assert (await cri_runtime.start(container(tmp_path))).running
    assert len(fake.containers) == 1


async def test_a_container_that_was_never_started_is_removed_after_a_restart(
    fake: FakeCri, runtime: Any, tmp_path: Path
) -> None:
    first = runtime()
    await first.load()
    sandbox = await first.run_sandbox(SandboxConfig("s", "u1", "pod/s", "web", "shop", log_dir=tmp_path / "logs"))
    info = await first.start(container(tmp_path))
    fake.containers[info.id].state = cri.CONTAINER_CREATED
    fake.PodSandboxStatus = lambda _: cri.PodSandboxStatusResponse()  # type: ignore[attr-defined]
    second = runtime()
    await second.load()
    assert [known_container.id for known_container in second.containers()] == [sandbox.id]
    assert fake.containers == {}
