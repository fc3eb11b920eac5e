"""Which requests are held, and as what. One that names nobody of Kubernetes' is not: it passes as it is."""

from __future__ import annotations

from collections.abc import Callable

from runtimeproxy.docker import exchanges, names
from runtimeproxy.docker.context import Context
from runtimeproxy.docker.held import Exchange
from runtimeproxy.docker.http1 import Request
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route, Target, target
from runtimeproxy.hooks.stages import Hook
from runtimeproxy.store import PodInfo, Store

_SOUGHT_FOR = {
    Route.START: (Hook.PRE_START_CONTAINER, Hook.POST_START_CONTAINER),
    Route.UPDATE: (Hook.PRE_UPDATE_CONTAINER_RESOURCES,),
}
"""Calls whose container is asked for if it is unknown and one of these hooks has a server. Not stops: what is stopped
twice has been forgotten the first time."""


class DockerCalls:
    """The link's `Calls`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def exchange(self, request: Request) -> Exchange | None:
        wanted = target(request)
        if wanted is None:
            return None
        context = self._context
        if wanted.route is Route.CREATE:
            name = names.parse_name(wanted.name)
            return exchanges.Create(context, name) if name is not None else None
        found = resolve(context.store, wanted.name)
        if found is not None:
            return self._of_known(wanted.route, found)
        if any(map(context.handles, _SOUGHT_FOR.get(wanted.route, ()))):
            return Sought(context, wanted, self._of_known)
        return None

    def _of_known(self, route: Route, found: str) -> Exchange | None:
        context = self._context
        container = found in context.store.containers
        match route:
            case Route.START if container:
                return exchanges.Start(context, found)
            case Route.UPDATE if container:
                return exchanges.Update(context, found)
            case Route.STOP:
                return exchanges.StopContainer(context, found) if container else exchanges.StopPod(context, found)
            case Route.REMOVE:
                return exchanges.Remove(context, found)
        return None

    def unhooked(self, reason: str) -> None:
        self._context.metrics.unhooked.labels(reason).inc()


class Sought:
    """A call on what the store does not know: dockerd is asked, and if it is Kubernetes' the call goes on as one on
    what was known."""

    def __init__(self, context: Context, target: Target, known: Callable[[Route, str], Exchange | None]) -> None:
        self._context, self._target, self._known = context, target, known
        self._inner: Exchange | None = None

    async def before(self, body: bytes) -> bytes:
        found = await self._context.find(self._target.name)
        self._inner = self._known(self._target.route, found) if found is not None else None
        return body if self._inner is None else await self._inner.before(body)

    def answered(self, status: int, body: bytes) -> None:
        if self._inner is not None:
            self._inner.answered(status, body)

    def lost(self) -> None:
        if self._inner is not None:
            self._inner.lost()


def resolve(store: Store, given: str) -> str | None:
    """The id of a stored container or sandbox as Docker finds it: by id, by name, by the start of one id alone."""
    if given in store.containers or given in store.pods:
        return given
    name = names.parse_name(given)
    if name is not None:
        return _by_name(store, name)
    known = [one for one in (*store.containers, *store.pods) if given and one.startswith(given)]
    return known[0] if len(known) == 1 else None


def _by_name(store: Store, name: KubernetesName) -> str | None:
    for container_id, container in store.containers.items():
        if (container.name, container.attempt) == (name.container, name.attempt) and _is_of(container.pod, name):
            return container_id
    for pod_id, pod in store.pods.items():
        if name.container == names.SANDBOX_NAME and pod.attempt == name.attempt and _is_of(pod, name):
            return pod_id
    return None


def _is_of(pod: PodInfo, name: KubernetesName) -> bool:
    return (pod.name, pod.namespace, pod.uid) == (name.pod, name.namespace, name.uid)
