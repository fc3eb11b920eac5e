"""Which requests are held, and as what. One that names nobody of Kubernetes' is not: it passes as it is."""

from __future__ import annotations

from runtimeproxy.docker import exchanges, names
from runtimeproxy.docker.context import Context
from runtimeproxy.docker.held import Exchange
from runtimeproxy.docker.http1 import Request
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route, target
from runtimeproxy.store import PodInfo, Store


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
        if found is None:
            return None
        container = found in context.store.containers
        match wanted.route:
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
