"""A scripted hook server and a scripted dockerd around the Docker handlers, and dockershim's requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from runtimeproxy.docker import names
from runtimeproxy.docker.api import DockerError, DockerInfo, InspectedContainer, ListedContainer, NoSuchContainer
from runtimeproxy.docker.context import DockerCallContext
from runtimeproxy.docker.http1 import parse_request
from runtimeproxy.docker.interception import DockerCallHandler
from runtimeproxy.docker.selector import DockerHandlerSelector
from runtimeproxy.hooks.dispatch import HookOutcome
from runtimeproxy.hooks.pods import SkipRule
from runtimeproxy.hooks.stages import Hook, HookRequest, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore

UID = "5f0d9a4e-0000-4000-8000-000000000001"
SANDBOX_ID, CONTAINER_ID = "a" * 64, "b" * 64
SKIP = "runtimeproxy.koordinator.sh/skip-hookserver"
Answer = HookResponse | HookOutcome | Callable[[HookRequest], HookResponse] | None


class Hooks:
    """Fake dispatcher: `answers` by hook; `asked`: the requests, in order."""

    def __init__(self) -> None:
        self.answers: dict[Hook, Answer] = {}
        self.asked: list[tuple[Hook, HookRequest]] = []

    def handles(self, hook: Hook) -> bool:
        return hook in self.answers

    async def dispatch(self, hook: Hook, request: HookRequest, deadline: float | None = None) -> HookOutcome:
        if hook not in self.answers:
            return HookOutcome()
        self.asked.append((hook, request))
        answer = self.answers[hook]
        if isinstance(answer, HookOutcome):
            return answer
        return HookOutcome(answer(request) if callable(answer) else answer)


class Docker:
    """Fake API of dockerd: `entries` by id; a string in place of one is an error. `restarted`: whether it was restarted
    since `info`."""

    def __init__(self, driver: str) -> None:
        self.driver, self.restarted = driver, True
        self.entries: dict[str, dict[str, Any] | str] = {}
        self.fails: str | None = None
        self.told = 0
        """Number of `info` calls."""

    async def info(self) -> DockerInfo:
        if self.fails is not None:
            raise DockerError(self.fails)
        self.restarted = False
        self.told += 1
        return DockerInfo(self.driver)

    async def close(self) -> None:
        self.restarted = True

    async def containers(self) -> list[ListedContainer]:
        if self.fails is not None:
            raise DockerError(self.fails)
        return [
            ListedContainer(key, [entry["Name"]], entry["Config"]["Labels"])
            if isinstance(entry, dict)
            else ListedContainer(key, [f"/k8s_x_p_n_{UID}_0"], {names.TYPE_LABEL: names.SANDBOX_TYPE})
            for key, entry in self.entries.items()
        ]

    def pooled(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    async def inspect(self, container_id: str) -> InspectedContainer:
        entry = self.entries.get(container_id)
        if entry is None:
            raise NoSuchContainer(f"GET /containers/{container_id}/json: 404")
        if isinstance(entry, str):
            raise DockerError(entry)
        return msgspec.json.decode(json.dumps({"Id": container_id, **entry}), type=InspectedContainer)


class World:
    """The Docker handlers in a scripted environment."""

    def __init__(self, driver: str = "cgroupfs") -> None:
        self.store, self.hooks, self.docker = ProxyStore(), Hooks(), Docker(driver)
        self.registry = CollectorRegistry()
        metrics = ProxyMetrics.of(self.registry)
        self.context = DockerCallContext(self.store, self.hooks, SkipRule(), self.docker, metrics)  # type: ignore[arg-type]
        self.calls = DockerHandlerSelector(self.context)

    def handler(self, line: str) -> DockerCallHandler | None:
        """The handler of this request (`POST /containers/create?name=x`)."""
        return self.calls.handler(parse_request(f"{line} HTTP/1.1\r\n\r\n".encode()))

    async def call(self, line: str, body: Any = None, *, status: int = 204, answer: Any = None) -> Any:
        """The body that dockerd gets for a held request; None for the request's own bytes."""
        exchange = self.handler(line)
        assert exchange is not None, f"{line} is not held"
        raw = b"" if body is None else json.dumps(body).encode()
        sent = await exchange.before(raw)
        exchange.answered(status, b"" if answer is None else json.dumps(answer).encode())
        return None if sent is raw else json.loads(sent)

    async def create(self, body: Any, container_id: str, name: str = "app", *, status: int = 201) -> Any:
        line = f"POST /v1.40/containers/create?name=k8s_{name}_web-0_shop_{UID}_0"
        return await self.call(line, body, status=status, answer={"Id": container_id, "Warnings": []})

    def counted(self, family: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"koord_runtime_proxy_{family}_total", labels) or 0.0


@pytest.fixture
def world() -> World:
    return World()


def sandbox_body(labels: Mapping[str, str] = {}, **host: Any) -> dict[str, Any]:
    """A sandbox as dockershim creates it, including null members."""
    return {
        "Hostname": "web-0", "Image": "pause", "Env": None,
        "Labels": {
            "app": "web", "annotation.kubernetes.io/config.source": "api", "io.kubernetes.docker.type": "podsandbox",
            "io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.uid": UID, **labels,
        },
        "HostConfig": {"CgroupParent": f"/kubepods/burstable/pod{UID}", "CpuShares": 2, "OomScoreAdj": -998,
                       "NetworkMode": "none", "SecurityOpt": ["seccomp=unconfined"], **host},
        "NetworkingConfig": None,
    }  # fmt: skip


def container_body(sandbox_id: str = SANDBOX_ID, **host: Any) -> dict[str, Any]:
    """A container of it as dockershim creates it."""
    return {
        "Image": "busybox", "Cmd": ["sleep", "1"], "Env": ["B=1", "A=2"],
        "Labels": {
            "annotation.io.kubernetes.container.hash": "1f", "io.kubernetes.container.name": "app",
            "io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox_id,
        },
        "HostConfig": {
            "CgroupParent": f"/kubepods/burstable/pod{UID}", "CpuPeriod": 100000, "CpuQuota": 50000, "CpuShares": 512,
            "Memory": 1 << 28, "OomScoreAdj": 999, "NetworkMode": f"container:{sandbox_id}", **host,
        },
    }  # fmt: skip
