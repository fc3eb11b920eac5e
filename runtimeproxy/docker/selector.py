"""Selects the requests to hold, and their handlers. Requests for non-Kubernetes containers are forwarded unchanged."""

from __future__ import annotations

from collections.abc import Callable

from runtimeproxy.docker import handlers, names
from runtimeproxy.docker.context import DockerCallContext
from runtimeproxy.docker.http1 import HttpRequest
from runtimeproxy.docker.interception import DockerCallHandler
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route, RouteMatch, match_route
from runtimeproxy.hooks.stages import Hook
from runtimeproxy.store import ProxyStore, StoredPod

_LOOKUP_HOOKS = {
    Route.START: (Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER),
    Route.UPDATE: (Hook.PRE_UPDATE_CONTAINER_RESOURCES,),
}
"""Calls whose container is looked up in dockerd when it is unknown and one of these hooks has a server. Stops are not
among them: a second stop finds no entry because the first one dropped it."""


class DockerHandlerSelector:
    """The link's `HandlerSelector`."""

    def __init__(self, context: DockerCallContext) -> None:
        self._context = context

    def handler(self, request: HttpRequest) -> DockerCallHandler | None:
        match = match_route(request)
        if match is None:
            return None
        context = self._context
        if match.route is Route.CREATE:
            name = names.parse_name(match.name)
            return handlers.CreateHandler(context, name) if name is not None else None
        object_id = resolve(context.store, match.name)
        if object_id is not None:
            return self._handler_for(match.route, object_id)
        if any(map(context.handles, _LOOKUP_HOOKS.get(match.route, ()))):
            return LookupHandler(context, match, self._handler_for)
        return None

    def _handler_for(self, route: Route, object_id: str) -> DockerCallHandler | None:
        context = self._context
        is_container = object_id in context.store.containers
        match route:
            case Route.START if is_container:
                return handlers.StartHandler(context, object_id)
            case Route.UPDATE if is_container:
                return handlers.UpdateHandler(context, object_id)
            case Route.STOP if is_container:
                return handlers.StopContainerHandler(context, object_id)
            case Route.STOP:
                return handlers.StopSandboxHandler(context, object_id)
            case Route.REMOVE:
                return handlers.RemoveHandler(context, object_id)
        return None

    def unhooked(self, reason: str) -> None:
        self._context.metrics.unhooked.labels(reason).inc()


class LookupHandler:
    """A call on an object that the store lacks: dockerd is queried, and if the object is a Kubernetes one, the call
    continues as one on a known object."""

    def __init__(
        self,
        context: DockerCallContext,
        match: RouteMatch,
        select: Callable[[Route, str], DockerCallHandler | None],
    ) -> None:
        self._context = context
        self._match = match
        self._select = select
        self._inner: DockerCallHandler | None = None

    async def before(self, body: bytes) -> bytes:
        object_id = await self._context.find(self._match.name)
        self._inner = self._select(self._match.route, object_id) if object_id is not None else None
        return body if self._inner is None else await self._inner.before(body)

    def answered(self, status: int, body: bytes) -> None:
        if self._inner is not None:
            self._inner.answered(status, body)

    def lost(self) -> None:
        if self._inner is not None:
            self._inner.lost()


def resolve(store: ProxyStore, reference: str) -> str | None:
    """The id of a stored container or sandbox as Docker resolves it: by id, by name, by a unique prefix of an id."""
    if reference in store.containers or reference in store.pods:
        return reference
    name = names.parse_name(reference)
    if name is not None:
        return _by_name(store, name)
    matches = [
        object_id for object_id in (*store.containers, *store.pods) if reference and object_id.startswith(reference)
    ]
    return matches[0] if len(matches) == 1 else None


def _by_name(store: ProxyStore, name: KubernetesName) -> str | None:
    for container_id, container in store.containers.items():
        if (container.name, container.attempt) == (name.container, name.attempt) and _is_of(container.pod, name):
            return container_id
    for pod_id, pod in store.pods.items():
        if name.container == names.SANDBOX_NAME and pod.attempt == name.attempt and _is_of(pod, name):
            return pod_id
    return None


def _is_of(pod: StoredPod, name: KubernetesName) -> bool:
    return (pod.name, pod.namespace, pod.uid) == (name.pod, name.namespace, name.uid)
