"""Which pod of an installed cluster serves a page, and how its port is reached. Pure but for `Directory`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from control.ctl.cluster.portforward import PodPort
from control.ctl.errors import CtlError
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import decode
from koordlet.api.meta import ObjectMeta
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import Client, KubeError, NotFound
from koordlet.kube.client import MAX_LIST_BYTES

KOORDLET, SCHEDULER, MANAGER = "koordlet", "koord-scheduler", "koord-manager"
KOORDLET_PORT, SCHEDULER_PORT = 9316, 10259
LABEL: Final = "koord-app"


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str = ""


class _Lease(msgspec.Struct):
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class _HttpGet(msgspec.Struct):
    port: int | str = 0
    scheme: str = "HTTP"


class _Probe(msgspec.Struct, rename="camel"):
    http_get: _HttpGet | None = None


class _Container(msgspec.Struct, rename="camel"):
    readiness_probe: _Probe | None = None
    image: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []
    node_name: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    phase: str = ""
    conditions: list[_Condition] = []


class ServingPod(msgspec.Struct, rename="camel"):
    """A pod of the system, with what this module reads of it."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ready(self) -> bool:
        """Whether it passes its readiness probe."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def app(self) -> str:
        """Its component."""
        return self.metadata.labels.get(LABEL, "")


def port_of(pod: ServingPod, port: int) -> PodPort:
    """How the port is reached: the readiness probe of the shipped manifests names the scheme of the same port."""
    probes = [container.readiness_probe for container in pod.spec.containers]
    tls = any(
        probe is not None
        and probe.http_get is not None
        and probe.http_get.port == port
        and probe.http_get.scheme == "HTTPS"
        for probe in probes
    )
    return PodPort(pod.metadata.namespace, pod.metadata.name, port, tls)


def leader_of(pods: Sequence[ServingPod], identity: str) -> ServingPod | None:
    """The pod whose name begins the identity of the lease, before an underscore; else a ready one."""
    for pod in pods:
        if identity.startswith(f"{pod.metadata.name}_"):
            return pod
    return next((pod for pod in pods if pod.ready), None)


class Directory:
    """Looks up pods of the system."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def koordlet(self, node: str) -> PodPort:
        """koordlet on this node. Raises CtlError."""
        pods = await self.pods(KOORDLET, f"spec.nodeName={node}")
        running = [pod for pod in pods if pod.status.phase == "Running"]
        if not running:
            raise CtlError(
                f"no koordlet runs on node {node}",
                f"`kubectl -n {KOORDINATOR_NAMESPACE} get pods -o wide -l {LABEL}={KOORDLET}` lists them.",
            )
        return port_of(next((pod for pod in running if pod.ready), running[0]), KOORDLET_PORT)

    async def scheduler(self) -> PodPort:
        """The scheduler that leads. Raises CtlError."""
        pods = [pod for pod in await self.pods(SCHEDULER) if pod.status.phase == "Running"]
        leader = leader_of(pods, await self._leader(SCHEDULER))
        if leader is None:
            raise CtlError(
                "no koord-scheduler is ready", f"`kubectl -n {KOORDINATOR_NAMESPACE} get pods -l {LABEL}={SCHEDULER}`"
            )
        return port_of(leader, SCHEDULER_PORT)

    async def pods(self, app: str = "", fields: str = "") -> list[ServingPod]:
        """The pods of one component, or of all. Raises CtlError."""
        selector = f"{LABEL}={app}" if app else LABEL
        params = {"labelSelector": selector} | ({"fieldSelector": fields} if fields else {})
        try:
            path = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/pods"
            answer = await self._client.raw("GET", path, params=params, max_bytes=MAX_LIST_BYTES)
            items = json.loads(answer).get("items") or []
        except KubeError as error:
            raise CtlError(
                f"cannot list the pods of {KOORDINATOR_NAMESPACE}: {error}",
                "Choose the API server with --kubeconfig and --context.",
            ) from error
        return [decode(json.dumps(item), ServingPod, where=selector) for item in items]

    async def node_of(self, namespace: str, name: str) -> str:
        """The node of a pod; "" while it has none. Raises CtlError."""
        try:
            return (await self._client.get(Pod, name, namespace)).spec.node_name
        except NotFound as error:
            raise CtlError(f"there is no pod {namespace}/{name}", "Give its namespace with -n.") from error
        except KubeError as error:
            raise CtlError(f"cannot get pod {namespace}/{name}: {error}") from error

    async def nodes_of(self, namespace: str) -> list[str]:
        """The nodes that run pods of a namespace. Raises CtlError."""
        try:
            pods = await self._client.list(Pod, namespace, field_selector="status.phase=Running")
        except KubeError as error:
            raise CtlError(f"cannot list the pods of {namespace}: {error}") from error
        return sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})

    async def _leader(self, lease: str) -> str:
        """The identity of the leader; "" if it is not known."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{KOORDINATOR_NAMESPACE}/leases/{lease}"
        try:
            return decode(await self._client.raw("GET", path), _Lease, where=path).spec.holder_identity
        except KubeError:
            return ""
