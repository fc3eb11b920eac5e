"""One class a held Docker call: what its hook is asked, what the answer changes, what is stored (spec 08 §12).

Each object lives for one request and is driven by link.Link: `before` once, then `answered` or `lost`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import msgspec

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookResponse,
)
from koordlet.app.logging import get_logger
from runtimeproxy.docker import bodies, names
from runtimeproxy.docker.api import DockerError
from runtimeproxy.docker.bodies import Members, Undecodable
from runtimeproxy.docker.context import Context
from runtimeproxy.docker.held import Refused
from runtimeproxy.docker.infos import container_info, pod_info
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route
from runtimeproxy.hooks.requests import container_request, pod_request
from runtimeproxy.hooks.stages import Hook
from runtimeproxy.store import ContainerInfo, PodInfo

log = get_logger(__name__)

_OK, _CREATED, _NO_CONTENT, _BAD, _NOT_FOUND, _BROKEN = 200, 201, 204, 400, 404, 500


class _Created(msgspec.Struct, rename="pascal"):
    id: str


class Held:
    """What all have in common: counting how calls end."""

    route: ClassVar[Route]

    def __init__(self, context: Context) -> None:
        self._context = context
        self._result = "passed"

    async def before(self, body: bytes) -> bytes:
        """What to send on; raises Refused. Nothing that hooks have a say in, unless overridden."""
        try:
            wanted = await self._asked(body)
        except Undecodable as error:
            self._result = "refused"
            raise Refused(f"containers/{self.route}: {error}") from error
        except Refused:
            self._result = "refused"
            raise
        if wanted is not body:
            self._result = "rewritten"
        return wanted

    async def _asked(self, body: bytes) -> bytes:
        return body

    def answered(self, status: int, body: bytes) -> None:
        if status >= _BAD:
            self._result = "failed"
        self._done(status, body)
        self._count()

    def _done(self, status: int, body: bytes) -> None:
        """Keep the store, run after hooks."""

    def lost(self) -> None:
        if self._result != "refused":
            self._result = "failed"
        self._count()

    def _count(self) -> None:
        self._context.metrics.calls.labels(f"docker {self.route}", self._result).inc()


class Create(Held):
    """A sandbox or a container, by its labels; stored under the id that dockerd gives it, if it does."""

    route = Route.CREATE

    def __init__(self, context: Context, name: KubernetesName) -> None:
        super().__init__(context)
        self._name = name
        self._made: PodInfo | ContainerInfo | None = None

    async def _asked(self, body: bytes) -> bytes:
        config = Members(body, "body")
        host = config.object("HostConfig")
        labels = config.get("Labels", dict[str, str]) or {}
        if labels.get(names.TYPE_LABEL) == names.SANDBOX_TYPE:
            await self._sandbox(config, host, labels)
        else:
            await self._container(config, host, labels)
        if host.changed:
            config.set("HostConfig", host)
        return config.raw if config.changed else body

    async def _sandbox(self, config: Members, host: Members, labels: dict[str, str]) -> None:
        context, driver = self._context, await self._context.driver()
        pod = self._made = pod_info(self._name, labels, host, driver)
        answer = await context.ask(pod, "", Hook.PRE_RUN_POD_SANDBOX, pod_request(pod))
        if not isinstance(answer, PodSandboxHookResponse):
            return
        merged = self._write_labels(config, labels, answer.labels, answer.annotations)
        if answer.HasField("resources"):
            bodies.write_create(host, answer.resources)
        self._write_parent(host, pod.cgroup_parent, answer.cgroup_parent, driver)
        self._made = pod_info(self._name, merged, host, driver)

    async def _container(self, config: Members, host: Members, labels: dict[str, str]) -> None:
        context = self._context
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        try:
            pod = await context.sandbox(pod_id)
        except DockerError as error:
            log.warning("A container is created without hooks: its sandbox can't be looked up", err=error)
            context.unhooked("unknown-sandbox", Hook.PRE_CREATE_CONTAINER)
            return
        driver = await context.driver()
        env = config.get("Env", list[str]) or []
        envs = bodies.env_map(env)
        asked = self._made = container_info(self._name, labels, envs, host, driver, pod_id, pod)
        request = container_request(asked)
        answer = await context.ask(pod, pod_id, Hook.PRE_CREATE_CONTAINER, request)
        if not isinstance(answer, ContainerResourceHookResponse):
            return
        merged = self._write_labels(config, labels, {}, answer.container_annotations)
        if answer.HasField("container_resources"):
            bodies.write_create(host, answer.container_resources)
        self._write_parent(host, request.pod_cgroup_parent, answer.pod_cgroup_parent, driver)
        wanted = dict(answer.container_envs)  # a message's map is slow to look into, and can't be empty and there
        if wanted and wanted != envs:
            config.set("Env", bodies.merge_env(env, wanted))
            envs = wanted
        self._made = container_info(self._name, merged, envs, host, driver, pod_id, pod)

    @staticmethod
    def _write_labels(
        config: Members, labels: Mapping[str, str], answered: Mapping[str, str], annotations: Mapping[str, str]
    ) -> dict[str, str]:
        merged = names.merge_labels(labels, answered, annotations)
        if merged != dict(labels):
            config.set("Labels", merged)
        return merged

    @staticmethod
    def _write_parent(host: Members, asked: str, answered: str, driver: str) -> None:
        wanted = names.docker_parent(answered, driver)
        if wanted and answered != asked and wanted != host.get("CgroupParent", str):
            host.set("CgroupParent", wanted)

    def _done(self, status: int, body: bytes) -> None:
        if status != _CREATED or self._made is None:
            return
        try:
            made_id = msgspec.json.decode(body, type=_Created).id
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("A container without a readable id is not remembered", err=error)
            return
        if not made_id:
            log.warning("A container without an id is not remembered")
        elif isinstance(self._made, PodInfo):
            self._context.store.put_pod(made_id, self._made)
        else:
            self._context.store.put_container(replace(self._made, id=made_id))


class _OfContainer(Held):
    """A call on a stored container; one that goes away meanwhile passes."""

    def __init__(self, context: Context, container_id: str) -> None:
        super().__init__(context)
        self._id = container_id

    def _tell(self, hook: Hook) -> None:
        container = self._context.store.containers.get(self._id)
        if container is not None:
            self._context.tell(container.pod, container.pod_id, hook, container_request(container))


class Start(_OfContainer):
    """Hooks before and after; they change nothing."""

    route = Route.START

    async def _asked(self, body: bytes) -> bytes:
        container = await self._context.container(self._id, Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER)
        if container is not None:
            request = container_request(container)
            await self._context.ask(container.pod, container.pod_id, Hook.PRE_START_CONTAINER, request)
        return body

    def _done(self, status: int, body: bytes) -> None:
        if status == _NO_CONTENT:
            self._tell(Hook.POST_START_CONTAINER)


class Update(_OfContainer):
    """The stored resources with the request's go to the hook, its answer to dockerd."""

    route = Route.UPDATE

    def __init__(self, context: Context, container_id: str) -> None:
        super().__init__(context, container_id)
        self._resources = LinuxContainerResources()

    async def _asked(self, body: bytes) -> bytes:
        container = await self._context.container(self._id)
        if container is None:
            return body
        update = Members(body, "body")
        known = container.resources or LinuxContainerResources()
        self._resources = bodies.merge_resources(known, bodies.read_resources(update))
        request = container_request(container)
        request.container_resources.CopyFrom(self._resources)
        hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
        answer = await self._context.ask(container.pod, container.pod_id, hook, request)
        if isinstance(answer, ContainerResourceHookResponse) and answer.HasField("container_resources"):
            told = bodies.write_update(update, answer.container_resources)
            self._resources = bodies.told_resources(known, told)
        return update.raw if update.changed else body

    def _done(self, status: int, body: bytes) -> None:
        if status == _OK:
            self._context.store.change_container(self._id, resources=self._resources)


class StopContainer(_OfContainer):
    """Forgotten once stopped (or gone); a stop that broke is tried again, with the hook then."""

    route = Route.STOP

    async def _asked(self, body: bytes) -> bytes:
        await self._context.container(self._id, Hook.POST_STOP_CONTAINER)  # dockerd may not tell of it later
        return body

    def _done(self, status: int, body: bytes) -> None:
        if status < _BROKEN:
            self._tell(Hook.POST_STOP_CONTAINER)
            self._context.store.drop_container(self._id)


class StopPod(Held):
    """The same for a sandbox; its containers keep what they know of it."""

    route = Route.STOP

    def __init__(self, context: Context, pod_id: str) -> None:
        super().__init__(context)
        self._id = pod_id

    async def _asked(self, body: bytes) -> bytes:
        if self._id in self._context.store.pods and self._context.handles(Hook.POST_STOP_POD_SANDBOX):
            with contextlib.suppress(DockerError):  # somebody else stopped it meanwhile: then nobody is told
                await self._context.pod(self._id)
        return body

    def _done(self, status: int, body: bytes) -> None:
        pod = self._context.store.pods.get(self._id)
        if status < _BROKEN and pod is not None:
            self._context.tell(pod, self._id, Hook.POST_STOP_POD_SANDBOX, pod_request(pod))
            self._context.store.drop_pod(self._id)


class Remove(Held):
    """No hook: containers that end by themselves are never stopped, and must not stay in the store."""

    route = Route.REMOVE

    def __init__(self, context: Context, found: str) -> None:
        super().__init__(context)
        self._id = found

    def _done(self, status: int, body: bytes) -> None:
        if status in (_NO_CONTENT, _NOT_FOUND):
            self._context.store.drop_container(self._id)
            self._context.store.drop_pod(self._id)
