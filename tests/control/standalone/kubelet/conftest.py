"""A strict fake API server, a scripted runtime, a cgroup tree in memory and virtual time."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.agent import Kubelet, NodeConfig
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver
from control.standalone.kubelet.cgroups.pods import PodCgroups
from control.standalone.kubelet.cgroups.values import CgroupValues, files_v2
from control.standalone.kubelet.node.apirequests import NodeApi
from control.standalone.kubelet.node.machine import MachineCapacity
from control.standalone.kubelet.node.status import resources
from control.standalone.kubelet.pods.state import PodStore
from control.standalone.kubelet.runtimes.process import ProcessRuntime
from control.standalone.kubelet.runtimes.runtime import (
    SANDBOX_NAME,
    ContainerConfig,
    ExecResult,
    RuntimeContainer,
    RuntimeFailure,
    SandboxConfig,
    StreamRequest,
)
from control.standalone.objectmeta import timestamp
from koordlet.api.encoding.quantity import Quantity
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.kube.errors import ApiError, Conflict, ConnectionFailed, NotFound
from tests.fakeclock import FakeClock

NODE = "n1"
GIB = 1 << 30


def merge(live: Any, patch: Any, key: str = "") -> Any:
    """Strategic merge as a kubelet uses it: conditions and addresses by type, other lists are replaced."""
    if isinstance(live, dict) and isinstance(patch, dict):
        out = dict(live)
        for name, value in patch.items():
            if value is None:
                out.pop(name, None)
            else:
                out[name] = merge(live.get(name), value, name)
        return out
    if key in ("conditions", "addresses") and isinstance(live, list):
        by_type = {item["type"]: item for item in live}
        for item in patch:
            by_type[item["type"]] = {**by_type.get(item["type"], {}), **item}
        return list(by_type.values())
    return copy.deepcopy(patch)


class FakeApi:
    """An `ApiCaller` and a `PodSource`. A request that a kubelet must not make is a violation."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.violations: list[str] = []
        self.away = False
        self.tokens: dict[str, dict[str, Any]] = {}
        self.rights: set[tuple[str, str]] = set()
        self.synced = asyncio.Event()
        self._listener: Any = None
        self._versions = itertools.count(1)

    async def start(self, listener: Any) -> None:
        self._listener = listener
        if not self.away:
            self.sync()

    def sync(self) -> None:
        for path, obj in self.objects.items():
            if "/pods/" in path:
                self._tell(obj)
        self.synced.set()

    async def stop(self) -> None:
        self._listener = None

    def _tell(self, obj: dict[str, Any]) -> None:
        if self._listener is not None and not self.away:
            self._listener.pod_seen(copy.deepcopy(obj))

    def pod_path(self, name: str, namespace: str = "default") -> str:
        return f"/api/v1/namespaces/{namespace}/pods/{name}"

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any] | None:
        return self.objects.get(self.pod_path(name, namespace))

    def create_pod(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        obj = copy.deepcopy(dict(raw))
        meta = obj.setdefault("metadata", {})
        meta.setdefault("namespace", "default")
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = timestamp(self._now())
        obj.setdefault("status", {"phase": "Pending"})
        obj.setdefault("spec", {}).setdefault("nodeName", NODE)
        path = self.pod_path(meta["name"], meta["namespace"])
        assert path not in self.objects, f"{path} exists"
        self._store(path, obj)
        self._tell(obj)
        return obj

    def delete_pod(self, name: str, grace: int | None = None, namespace: str = "default") -> None:
        path = self.pod_path(name, namespace)
        obj = self.objects[path]
        seconds = obj["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        if seconds == 0:
            del self.objects[path]
            if self._listener is not None and not self.away:
                self._listener.pod_gone(obj["metadata"]["uid"])
            return
        obj["metadata"]["deletionTimestamp"] = timestamp(self._now() + seconds)
        obj["metadata"]["deletionGracePeriodSeconds"] = seconds
        self._store(path, obj)
        self._tell(obj)

    def _store(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[path] = obj
        return copy.deepcopy(obj)

    async def call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionFailed(f"{method} {path}: connection refused")
        self.calls.append((method, path, copy.deepcopy(body)))
        parts = path.strip("/").split("/")
        if parts[-1] == "tokenreviews":
            user = self.tokens.get(body["spec"]["token"])
            return {"status": {"authenticated": user is not None, **({"user": user} if user else {})}}
        if parts[-1] == "token":
            assert body["spec"]["boundObjectRef"]["kind"] == "Pod", "a token without a pod outlives it"
            return {"status": {"token": f"token-of-{parts[-2]}-{body['spec']['boundObjectRef']['uid']}"}}
        if parts[-1] == "subjectaccessreviews":
            attributes = body["spec"]["resourceAttributes"]
            assert attributes["resource"] == "nodes"
            assert attributes["name"] == NODE
            return {"status": {"allowed": (body["spec"]["user"], attributes["subresource"]) in self.rights}}
        handler = {"GET": self._get, "POST": self._post, "PATCH": self._patch, "DELETE": self._delete}[method]
        return handler(path, body, content_type)

    def _get(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        if path not in self.objects:
            raise NotFound(404, "NotFound", f"{path} not found")
        return copy.deepcopy(self.objects[path])

    def _post(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        if not path.endswith(("/nodes", "/leases")):
            self._violation(f"POST {path}")
        full = f"{path}/{body['metadata']['name']}"
        if full in self.objects:
            raise Conflict(409, "AlreadyExists", "already exists")
        obj = copy.deepcopy(body)
        obj["metadata"].setdefault("uid", str(uuid.uuid4()))
        return self._store(full, obj)

    def _patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        status = path.endswith("/status")
        target = path.removesuffix("/status")
        if target not in self.objects:
            raise NotFound(404, "NotFound", f"{target} not found")
        live = self.objects[target]
        uid = body.get("metadata", {}).get("uid")
        if uid is not None and uid != live["metadata"]["uid"]:
            raise Conflict(409, "Conflict", f"uid {uid} is not {live['metadata']['uid']}")
        allowed = {"status", "metadata"} if status else {"metadata", "spec"}
        if set(body) - allowed or (status and set(body.get("metadata", {})) - {"uid"}):
            self._violation(f"PATCH {path} of {sorted(body)}")
        obj = self._store(target, merge(live, body))
        if "/pods/" in target:
            self._tell(obj)
        elif "/nodes/" in target and self._listener is not None:
            self._listener.node_seen(copy.deepcopy(obj))
        return obj

    def _delete(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        obj = self.objects.get(path)
        if obj is None:
            raise NotFound(404, "NotFound", f"{path} not found")
        if body.get("gracePeriodSeconds") != 0 or not body.get("preconditions", {}).get("uid"):
            self._violation(f"DELETE {path} with {body}")
        if body["preconditions"]["uid"] != obj["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "uid precondition failed")
        if not obj["metadata"].get("deletionTimestamp"):
            self._violation(f"DELETE {path} without a deletion timestamp")
        del self.objects[path]
        if self._listener is not None:
            self._listener.pod_gone(obj["metadata"]["uid"])
        return {}

    def _violation(self, text: str) -> None:
        self.violations.append(text)
        raise ApiError(403, "Forbidden", text)


class MemoryTree:
    """A cgroup tree in memory: v2 file contents by directory."""

    version = 2

    def __init__(self) -> None:
        self.files: dict[str, dict[str, str]] = {}

    def create(self, path: str) -> None:
        parts = path.split("/")
        for i in range(1, len(parts) + 1):
            self.files.setdefault("/".join(parts[:i]), {})

    def apply(self, path: str, values: CgroupValues) -> None:
        self.files[path].update(files_v2(values))

    def exists(self, path: str) -> bool:
        return path in self.files

    def children(self, path: str) -> list[str]:
        return sorted(p[len(path) + 1 :] for p in self.files if p.rpartition("/")[0] == path)

    def pids(self, path: str) -> set[int]:
        return set()

    def kill(self, path: str) -> bool:
        return True

    def remove(self, path: str) -> bool:
        for name in [p for p in self.files if p == path or p.startswith(path + "/")]:
            del self.files[name]
        return True

    def cpu_usage_ns(self, path: str) -> int | None:
        return 1_000 if path in self.files else None

    def memory_usage(self, path: str) -> int | None:
        return 4096 if path in self.files else None

    def memory_inactive_file(self, path: str) -> int | None:
        return 1024


class FakeRuntime:
    """Containers that run until a test ends them."""

    name, version, isolates = "fake", "0", False

    def __init__(self, clock: FakeClock, tree: MemoryTree) -> None:
        self._clock, self._tree = clock, tree
        self.infos: dict[str, RuntimeContainer] = {}
        self.configs: list[ContainerConfig] = []
        self.signals: list[tuple[str, int]] = []
        self.killed: list[str] = []
        self.stubborn: set[str] = set()
        """Names of containers that ignore SIGTERM."""
        self.cannot_run: set[str] = set()
        self.execs: list[tuple[str, tuple[str, ...]]] = []
        self.exec_code: dict[str, int] = {}
        """First word of a command -> exit code; default 0."""
        self.streams: list[StreamRequest] = []
        self.stream_server = "http://127.0.0.1:1/none"
        self._callback: Callable[[RuntimeContainer], None] = lambda info: None

    def on_exit(self, callback: Callable[[RuntimeContainer], None]) -> None:
        self._callback = callback

    async def load(self) -> None:
        return None

    async def pull(self, image: str, has_command: bool) -> None:
        if not has_command:
            raise RuntimeFailure("ErrImagePull", "container has no command")

    async def run_sandbox(self, config: SandboxConfig) -> RuntimeContainer:
        self._tree.create(config.cgroup)
        now = int(self._clock.now() * 1e9)
        info = RuntimeContainer(config.id, config.pod_uid, SANDBOX_NAME, 0, config.cgroup, Path(os.devnull), 1, now)
        self.infos[config.id] = info
        return info

    async def start(self, config: ContainerConfig) -> RuntimeContainer:
        self.configs.append(config)
        now = int(self._clock.now() * 1e9)
        info = RuntimeContainer(
            config.id, config.pod_uid, config.name, config.attempt, config.cgroup, config.log_path, 100, now
        )
        if config.name in self.cannot_run:
            info = replace(info, finished_at=now, exit_code=127, reason="ContainerCannotRun", message="no such file")
        else:
            self._tree.create(config.cgroup)
            self._tree.apply(config.cgroup, config.values)
        self.infos[config.id] = info
        return info

    def find(self, name: str) -> RuntimeContainer:
        return max((i for i in self.infos.values() if i.name == name), key=lambda i: i.attempt)

    def starts(self, name: str) -> int:
        return sum(c.name == name for c in self.configs)

    def exit(self, name: str, code: int, reason: str | None = None) -> None:
        self._exit(self.find(name), code, reason)

    def _exit(self, info: RuntimeContainer, code: int, reason: str | None = None) -> None:
        assert info.running, f"{info.name} has already exited"
        reason = reason or ("Completed" if code == 0 else "Error")
        ended = replace(info, exit_code=code, reason=reason, finished_at=int(self._clock.now() * 1e9))
        self.infos[info.id] = ended
        self._tree.remove(info.cgroup)
        self._callback(ended)

    def get(self, container_id: str) -> RuntimeContainer | None:
        return self.infos.get(container_id)

    def containers(self, pod_uid: str | None = None) -> list[RuntimeContainer]:
        return [i for i in self.infos.values() if pod_uid is None or i.pod_uid == pod_uid]

    async def stream_url(self, request: StreamRequest) -> str:
        self.streams.append(request)
        return self.stream_server

    def signal(self, container_id: str, number: int) -> None:
        info = self.infos[container_id]
        self.signals.append((info.name, number))
        if info.name not in self.stubborn and info.running:
            self._exit(info, 128 + number)

    async def kill(self, container_id: str) -> None:
        info = self.infos[container_id]
        self.killed.append(info.name)
        if info.running:
            self._exit(info, 137)

    async def remove(self, container_id: str) -> None:
        info = self.infos.pop(container_id, None)
        if info is not None:
            self._tree.remove(info.cgroup)

    async def exec(self, container_id: str, argv: Sequence[str], seconds: float) -> ExecResult:
        self.execs.append((self.infos[container_id].name, tuple(argv)))
        return ExecResult(self.exec_code.get(argv[0], 0), b"said")


class Events:
    def __init__(self) -> None:
        self.all: list[tuple[str, str, str, str]] = []

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        self.all.append((raw["metadata"].get("name", ""), kind, reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, _, reason, _ in self.all]


MACHINE = MachineCapacity(4, 16 * GIB, 100 * GIB, {2 << 20: 0}, "host", "6.1.0", "Debian", "amd64", "m", "s", "b")


class World:
    """One kubelet with its environment. `restart` is a kill -9: nothing is stopped, a new kubelet starts."""

    def __init__(self, root: Path, clock: Any, api: FakeApi, runtime: Any, tree: Any, names: CgroupNames) -> None:
        self.root, self.clock, self.api, self.runtime, self.tree = root, clock, api, runtime, tree
        self.names, self.events = names, Events()
        self.kubelet = self._make()

    def _make(self) -> Kubelet:
        node_resources = resources(MACHINE, 110, {"cpu": Quantity("500m")}, {"memory": Quantity("1Gi")}, 100 << 20, 10)
        cgroups = PodCgroups(
            self.tree,
            self.names,
            self.root / "cgroups.json",
            node_resources.absolute["cpu"].milli_value(),
            node_resources.absolute["memory"].value(),
        )
        return Kubelet(
            NodeConfig(
                NODE,
                "127.0.0.1",
                MACHINE,
                node_resources,
                "v1.34.0-standin",
                {},
                10.0,
                40,
                privileged_namespaces={"system"},
            ),
            NodeApi(self.api, NODE),
            self.api,
            self.runtime,
            cgroups,
            PodStore(self.root / "pods"),
            self.events,
            self.clock,
        )

    async def start(self) -> None:
        await self.kubelet.start(10250)
        await self.settle()

    async def settle(self) -> None:
        if isinstance(self.clock, FakeClock):
            for _ in range(4):
                await self.clock.advance(0)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def restart(self, runtime: Any = None) -> None:
        await self.kubelet.stop()
        self.runtime = runtime or self.runtime
        self.api.synced = asyncio.Event()
        self.kubelet = self._make()
        await self.start()

    def status(self, name: str) -> dict[str, Any]:
        pod = self.api.pod(name)
        assert pod is not None, f"no pod {name}"
        status: dict[str, Any] = pod["status"]
        return status

    def container(self, name: str, index: int = 0) -> dict[str, Any]:
        status: dict[str, Any] = self.status(name)["containerStatuses"][index]
        return status

    def condition(self, name: str, kind: str) -> str:
        return str({c["type"]: c["status"] for c in self.status(name)["conditions"]}[kind])

    async def until(self, done: Callable[[], Any], seconds: float = 120.0) -> None:
        """For tests on the real machine: wait for a condition."""
        async with asyncio.timeout(seconds):
            while not done():  # noqa: ASYNC110 - the kernel sets no asyncio.Event
                await asyncio.sleep(0.02)


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def world(tmp_path: Path, fake_clock: FakeClock) -> AsyncIterator[World]:
    tree = MemoryTree()
    api = FakeApi(fake_clock.now)
    world = World(tmp_path, fake_clock, api, FakeRuntime(fake_clock, tree), tree, CgroupNames(Driver.CGROUPFS))
    await world.start()
    yield world
    await world.kubelet.stop()
    assert api.violations == []


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """`pod("web", cpu="100m", restartPolicy="Never")`: one container `main`, requests = limits off."""

    def make(name: str = "web", containers: Any = None, init: Any = None, uid: str | None = None, **spec: Any) -> Any:
        raw: dict[str, Any] = {
            "metadata": {"name": name, **({"uid": uid} if uid else {})},
            "spec": {
                "containers": containers or [{"name": "main", "image": "busybox", "command": ["sleep", "1d"]}],
                **({"initContainers": init} if init else {}),
                **spec,
            },
        }
        return raw

    return make


@pytest.fixture
def real_tree() -> CgroupTree:
    return CgroupTree.discover(Path("/sys/fs/cgroup"))


@pytest.fixture
async def machine_world(tmp_path: Path, real_tree: CgroupTree, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A kubelet on the real kernel, below its own cgroup. Parametrise it indirectly with the driver."""
    driver = Driver(getattr(request, "param", "cgroupfs"))
    names = CgroupNames(driver, f"koordtest-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    clock: Clock = SYSTEM_CLOCK
    api = FakeApi(clock.now)
    runtime = ProcessRuntime(tmp_path / "containers", real_tree, 1 << 20, 3)
    world = World(tmp_path, clock, api, runtime, real_tree, names)
    await world.start()
    try:
        yield world
    finally:
        await world.kubelet.stop()
        await world.kubelet.cleanup()
        await world.runtime.close()
        assert not real_tree.exists(names.prefix), "cgroups were not removed"
    assert api.violations == []
