"""One class per held Docker call: its hook request, what the response changes, what is stored (spec 08 §12).

Each object handles one request, as an `interception.DockerCallHandler`.
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
from runtimeproxy.docker.bodies import InvalidBody, JsonObject
from runtimeproxy.docker.context import DockerCallContext
from runtimeproxy.docker.infos import container_info, pod_info
from runtimeproxy.docker.interception import DockerCallRefused
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route
from runtimeproxy.hooks.requests import container_request, pod_request
from runtimeproxy.hooks.stages import Hook
from runtimeproxy.store import StoredContainer, StoredPod

log = get_logger(__name__)

_OK = 200
_CREATED = 201
_NO_CONTENT = 204
_BAD_REQUEST = 400
_NOT_FOUND = 404
_SERVER_ERROR = 500


class _Created(msgspec.Struct, rename="pascal"):
    id: str


class BaseHandler:
    """Base class: counts how calls end."""

    route: ClassVar[Route]

    def __init__(self, context: DockerCallContext) -> None:
        self._context = context
        self._result = "passed"

    async def before(self, body: bytes) -> bytes:
        """The body to send; raises DockerCallRefused."""
        try:
            replacement = await self._rewrite(body)
        except InvalidBody as error:
            self._result = "refused"
            raise DockerCallRefused(f"containers/{self.route}: {error}") from error
        except DockerCallRefused:
            self._result = "refused"
            raise
        if replacement is not body:
            self._result = "rewritten"
        return replacement

    async def _rewrite(self, body: bytes) -> bytes:
        return body

    def answered(self, status: int, body: bytes) -> None:
        if status >= _BAD_REQUEST:
            self._result = "failed"
        self._finish(status, body)
        self._count()

    def _finish(self, status: int, body: bytes) -> None:
        """Update the store, run post hooks."""

    def lost(self) -> None:
        if self._result != "refused":
            self._result = "failed"
        self._count()

    def _count(self) -> None:
        self._context.metrics.calls.labels(f"docker {self.route}", self._result).inc()


class CreateHandler(BaseHandler):
    """Creates a sandbox or a container, depending on its labels; stored under the id that dockerd returns."""

    route = Route.CREATE

    def __init__(self, context: DockerCallContext, name: KubernetesName) -> None:
        super().__init__(context)
        self._name = name
        self._created: StoredPod | StoredContainer | None = None

    async def _rewrite(self, body: bytes) -> bytes:
        config = JsonObject(body, "body")
        host = config.object("HostConfig")
        labels = config.get("Labels", dict[str, str]) or {}
        if labels.get(names.TYPE_LABEL) == names.SANDBOX_TYPE:
            await self._sandbox(config, host, labels)
        else:
            await self._container(config, host, labels)
        if host.changed:
            config.set("HostConfig", host)
        return config.raw if config.changed else body

    async def _sandbox(self, config: JsonObject, host: JsonObject, labels: dict[str, str]) -> None:
        context, driver = self._context, await self._context.driver()
        pod = self._created = pod_info(self._name, labels, host, driver)
        response = await context.run_pre(pod, "", Hook.PRE_RUN_POD_SANDBOX, pod_request(pod))
        if not isinstance(response, PodSandboxHookResponse):
            return
        merged = self._write_labels(config, labels, response.labels, response.annotations)
        if response.HasField("resources"):
            bodies.write_create(host, response.resources)
        self._write_parent(host, pod.cgroup_parent, response.cgroup_parent, driver)
        self._created = pod_info(self._name, merged, host, driver)

    async def _container(self, config: JsonObject, host: JsonObject, labels: dict[str, str]) -> None:
        context = self._context
        pod_id = labels.get(names.SANDBOX_ID_LABEL, "")
        try:
            pod = await context.sandbox(pod_id)
        except DockerError as error:
            log.warning("Creating a container without hooks: cannot look up its sandbox", err=error)
            context.unhooked("unknown-sandbox", Hook.PRE_CREATE_CONTAINER)
            return
        driver = await context.driver()
        env = config.get("Env", list[str]) or []
        envs = bodies.env_map(env)
        requested = self._created = container_info(self._name, labels, envs, host, driver, pod_id, pod)
        request = container_request(requested)
        response = await context.run_pre(pod, pod_id, Hook.PRE_CREATE_CONTAINER, request)
        if not isinstance(response, ContainerResourceHookResponse):
            return
        merged = self._write_labels(config, labels, {}, response.container_annotations)
        if response.HasField("container_resources"):
            bodies.write_create(host, response.container_resources)
        self._write_parent(host, request.pod_cgroup_parent, response.pod_cgroup_parent, driver)
        replacement = dict(response.container_envs)  # copied, as access to a protobuf map is slow; empty means absent
        if replacement and replacement != envs:
            config.set("Env", bodies.merge_env(env, replacement))
            envs = replacement
        self._created = container_info(self._name, merged, envs, host, driver, pod_id, pod)

    @staticmethod
    def _write_labels(
        config: JsonObject, labels: Mapping[str, str], returned: Mapping[str, str], annotations: Mapping[str, str]
    ) -> dict[str, str]:
        merged = names.merge_labels(labels, returned, annotations)
        if merged != dict(labels):
            config.set("Labels", merged)
        return merged

    @staticmethod
    def _write_parent(host: JsonObject, requested: str, returned: str, driver: str) -> None:
        replacement = names.docker_parent(returned, driver)
        if replacement and returned != requested and replacement != host.get("CgroupParent", str):
            host.set("CgroupParent", replacement)

    def _finish(self, status: int, body: bytes) -> None:
        if status != _CREATED or self._created is None:
            return
        try:
            created_id = msgspec.json.decode(body, type=_Created).id
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("Container is not stored: invalid response", err=error)
            return
        if not created_id:
            log.warning("Container is not stored: no id in the response")
        elif isinstance(self._created, StoredPod):
            self._context.store.put_pod(created_id, self._created)
        else:
            self._context.store.put_container(replace(self._created, id=created_id))


class _ContainerHandler(BaseHandler):
    """A call on a stored container; forwarded if the entry is gone meanwhile."""

    def __init__(self, context: DockerCallContext, container_id: str) -> None:
        super().__init__(context)
        self._id = container_id

    def _run_post(self, hook: Hook) -> None:
        container = self._context.store.containers.get(self._id)
        if container is not None:
            self._context.run_post(container.pod, container.pod_id, hook, container_request(container))


class StartHandler(_ContainerHandler):
    """Hooks before and after; their responses change nothing."""

    route = Route.START

    async def _rewrite(self, body: bytes) -> bytes:
        container = await self._context.container(self._id, Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER)
        if container is not None:
            request = container_request(container)
            await self._context.run_pre(container.pod, container.pod_id, Hook.PRE_START_CONTAINER, request)
        return body

    def _finish(self, status: int, body: bytes) -> None:
        if status == _NO_CONTENT:
            self._run_post(Hook.POST_START_CONTAINER)


class UpdateHandler(_ContainerHandler):
    """Sends the stored resources merged with the request's to the hook, and its response to dockerd."""

    route = Route.UPDATE

    def __init__(self, context: DockerCallContext, container_id: str) -> None:
        super().__init__(context, container_id)
        self._resources = LinuxContainerResources()

    async def _rewrite(self, body: bytes) -> bytes:
        container = await self._context.container(self._id)
        if container is None:
            return body
        update = JsonObject(body, "body")
        known = container.resources or LinuxContainerResources()
        self._resources = bodies.merge_resources(known, bodies.read_resources(update))
        request = container_request(container)
        request.container_resources.CopyFrom(self._resources)
        hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
        response = await self._context.run_pre(container.pod, container.pod_id, hook, request)
        if isinstance(response, ContainerResourceHookResponse) and response.HasField("container_resources"):
            sent = bodies.write_update(update, response.container_resources)
            self._resources = bodies.applied_resources(known, sent)
        return update.raw if update.changed else body

    def _finish(self, status: int, body: bytes) -> None:
        if status == _OK:
            self._context.store.change_container(self._id, resources=self._resources)


class StopContainerHandler(_ContainerHandler):
    """Drops the entry once stopped (or gone); a failed stop will be repeated, with its hook."""

    route = Route.STOP

    async def _rewrite(self, body: bytes) -> bytes:
        await self._context.container(self._id, Hook.POST_STOP_CONTAINER)  # dockerd may not have the details later
        return body

    def _finish(self, status: int, body: bytes) -> None:
        if status < _SERVER_ERROR:
            self._run_post(Hook.POST_STOP_CONTAINER)
            self._context.store.drop_container(self._id)


class StopSandboxHandler(BaseHandler):
    """The same for a sandbox; entries of its containers keep a copy of it."""

    route = Route.STOP

    def __init__(self, context: DockerCallContext, pod_id: str) -> None:
        super().__init__(context)
        self._id = pod_id

    async def _rewrite(self, body: bytes) -> bytes:
        if self._id in self._context.store.pods and self._context.handles(Hook.POST_STOP_POD_SANDBOX):
            with contextlib.suppress(DockerError):  # stopped by another client meanwhile: no hook runs
                await self._context.pod(self._id)
        return body

    def _finish(self, status: int, body: bytes) -> None:
        pod = self._context.store.pods.get(self._id)
        if status < _SERVER_ERROR and pod is not None:
            self._context.run_post(pod, self._id, Hook.POST_STOP_POD_SANDBOX, pod_request(pod))
            self._context.store.drop_pod(self._id)


class RemoveHandler(BaseHandler):
    """No hook; drops the entries of containers that ended by themselves and were never stopped."""

    route = Route.REMOVE

    def __init__(self, context: DockerCallContext, object_id: str) -> None:
        super().__init__(context)
        self._id = object_id

    def _finish(self, status: int, body: bytes) -> None:
        if status in (_NO_CONTENT, _NOT_FOUND):
            self._context.store.drop_container(self._id)
            self._context.store.drop_pod(self._id)
