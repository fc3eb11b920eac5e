"""Parses the API's JSON of a pod into frozen dataclasses with the fields that the kubelet needs.

The API object itself stays a dict, because /pods returns it with every field; decisions use this parsed form. An
invalid pod raises `MalformedPod`, which names the field; the caller fails the pod with that message instead of
running part of it. Absent optional fields get the API's defaults, so that a pod without server-side defaulting
behaves the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control.standalone.kubelet.cgroups.naming import QosClass
from koordlet.api.core.podresources import total
from koordlet.api.encoding.quantity import Quantity, QuantityError

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DEFAULT_GRACE_SECONDS = 30


class MalformedPod(ValueError):
    """A pod that this kubelet cannot run; `field` is the JSON path of the invalid field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class LifecycleHandler:
    """The action of a probe or a lifecycle hook: exactly one of the fields is set."""

    exec: tuple[str, ...] | None = None
    http: Mapping[str, Any] | None = None
    tcp: Mapping[str, Any] | None = None
    sleep: int | None = None
    unsupported: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    handler: LifecycleHandler
    initial_delay: int
    period: int
    timeout: int
    success_threshold: int
    failure_threshold: int
    grace: int | None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[Mapping[str, Any], ...]
    env_from: tuple[Mapping[str, Any], ...]
    working_dir: str | None
    requests: Mapping[str, Quantity]
    limits: Mapping[str, Quantity]
    ports: Mapping[str, int]
    liveness: ProbeSpec | None
    readiness: ProbeSpec | None
    startup: ProbeSpec | None
    post_start: LifecycleHandler | None
    pre_stop: LifecycleHandler | None
    sidecar: bool
    user: int | None
    group: int | None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target: str = ""
    """Of an ephemeral container: the container whose processes it sees."""
    security: Mapping[str, Any] = field(default_factory=dict)
    """securityContext, with the pod's values where the container has none."""
    mounts: tuple[Mapping[str, Any], ...] = ()

    def request(self, resource: str) -> Quantity | None:
        return self.requests.get(resource)

    def limit(self, resource: str) -> Quantity | None:
        return self.limits.get(resource)


@dataclass(frozen=True, slots=True)
class ParsedPod:
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[ContainerSpec, ...]
    init_containers: tuple[ContainerSpec, ...]
    restart_policy: str
    grace_seconds: int
    active_deadline: int | None
    overhead: Mapping[str, Quantity]
    node_name: str
    service_account: str
    priority: int
    priority_class: str
    readiness_gates: tuple[str, ...]
    ephemeral_containers: tuple[ContainerSpec, ...] = ()
    host_pid: bool = False
    host_ipc: bool = False
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def critical(self) -> bool:
        """A pod that the cluster depends on: priority of system-cluster-critical or higher."""
        return self.priority >= 2_000_000_000

    @property
    def node_critical(self) -> bool:
        return self.critical and self.priority_class == "system-node-critical"

    def all_containers(self) -> tuple[ContainerSpec, ...]:
        """Those that have resources and count for the pod's phase."""
        return self.init_containers + self.containers

    def every_container(self) -> tuple[ContainerSpec, ...]:
        """Also ephemeral containers."""
        return self.all_containers() + self.ephemeral_containers

    def find(self, name: str) -> ContainerSpec | None:
        return next((c for c in self.every_container() if c.name == name), None)


def _map(value: object, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedPod(field, f"expected an object, got {type(value).__name__}")
    return value


def _list(value: object, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedPod(field, f"expected a list, got {type(value).__name__}")
    return value


def _maps(value: object, field: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(_map(item, f"{field}[{i}]") for i, item in enumerate(_list(value, field)))


def _int(value: object, field: str, default: int, minimum: int = 0) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedPod(field, f"expected an integer, got {value!r}")
    if value < minimum:
        raise MalformedPod(field, f"must be greater than or equal to {minimum}, got {value}")
    return value


def _opt_int(value: object, field: str, minimum: int = 0) -> int | None:
    return None if value is None else _int(value, field, 0, minimum)


def _strings(value: object, field: str) -> tuple[str, ...]:
    items = _list(value, field)
    for i, item in enumerate(items):
        if not isinstance(item, str):
            raise MalformedPod(f"{field}[{i}]", f"expected a string, got {item!r}")
    return tuple(items)


def _quantities(value: object, field: str) -> dict[str, Quantity]:
    out: dict[str, Quantity] = {}
    for name, text in _map(value, field).items():
        where = f"{field}[{name}]"
        if not isinstance(text, str | int | float) or isinstance(text, bool):
            raise MalformedPod(where, f"expected a quantity, got {text!r}")
        try:
            quantity = Quantity(str(text))
        except QuantityError as error:
            raise MalformedPod(where, f"invalid quantity {text!r}: {error}") from error
        if quantity < Quantity("0"):
            raise MalformedPod(where, f"must not be negative, got {text!r}")
        out[str(name)] = quantity
    return out


def _handler(raw: Mapping[str, Any], field: str) -> LifecycleHandler:
    if "exec" in raw:
        command = _strings(_map(raw["exec"], f"{field}.exec").get("command"), f"{field}.exec.command")
        if not command:
            raise MalformedPod(f"{field}.exec.command", "must not be empty")
        return LifecycleHandler(exec=command)
    if "httpGet" in raw:
        return LifecycleHandler(http=_map(raw["httpGet"], f"{field}.httpGet"))
    if "tcpSocket" in raw:
        return LifecycleHandler(tcp=_map(raw["tcpSocket"], f"{field}.tcpSocket"))
    if "sleep" in raw:
        sleep = _map(raw["sleep"], f"{field}.sleep").get("seconds")
        return LifecycleHandler(sleep=_int(sleep, f"{field}.sleep.seconds", 0))
    if "grpc" in raw:
        return LifecycleHandler(unsupported="grpc")
    raise MalformedPod(field, "must name one of exec, httpGet, tcpSocket")


def _probe(raw: object, field: str) -> ProbeSpec | None:
    if raw is None:
        return None
    spec = _map(raw, field)
    return ProbeSpec(
        handler=_handler(spec, field),
        initial_delay=_int(spec.get("initialDelaySeconds"), f"{field}.initialDelaySeconds", 0),
        period=_int(spec.get("periodSeconds"), f"{field}.periodSeconds", 10, 1),
        timeout=_int(spec.get("timeoutSeconds"), f"{field}.timeoutSeconds", 1, 1),
        success_threshold=_int(spec.get("successThreshold"), f"{field}.successThreshold", 1, 1),
        failure_threshold=_int(spec.get("failureThreshold"), f"{field}.failureThreshold", 3, 1),
        grace=_opt_int(spec.get("terminationGracePeriodSeconds"), f"{field}.terminationGracePeriodSeconds"),
    )


def _ports(raw: object, field: str) -> dict[str, int]:
    out: dict[str, int] = {}
    for i, entry in enumerate(_list(raw, field)):
        port = _map(entry, f"{field}[{i}]")
        number = _int(port.get("containerPort"), f"{field}[{i}].containerPort", 0, 1)
        if port.get("name"):
            out[str(port["name"])] = number
    return out


def _container(raw: object, field: str, pod_security: Mapping[str, Any]) -> ContainerSpec:
    spec = _map(raw, field)
    name = spec.get("name")
    if not isinstance(name, str) or not name:
        raise MalformedPod(f"{field}.name", "Required value")
    resources = _map(spec.get("resources"), f"{field}.resources")
    limits = _quantities(resources.get("limits"), f"{field}.resources.limits")
    requests = _quantities(resources.get("requests"), f"{field}.resources.requests")
    for resource, limit in limits.items():
        request = requests.setdefault(resource, limit)  # the API server's own defaulting
        if request > limit:
            where = f"{field}.resources.requests[{resource}]"
            raise MalformedPod(where, f"{request} must be less than or equal to the limit {limit}")
    lifecycle = _map(spec.get("lifecycle"), f"{field}.lifecycle")
    hooks = {
        key: _handler(_map(lifecycle[key], f"{field}.lifecycle.{key}"), f"{field}.lifecycle.{key}")
        for key in ("postStart", "preStop")
        if lifecycle.get(key) is not None
    }
    security = {**pod_security, **_map(spec.get("securityContext"), f"{field}.securityContext")}
    restart = spec.get("restartPolicy")
    return ContainerSpec(
        name=name,
        image=str(spec.get("image") or ""),
        command=_strings(spec.get("command"), f"{field}.command"),
        args=_strings(spec.get("args"), f"{field}.args"),
        env=_maps(spec.get("env"), f"{field}.env"),
        env_from=_maps(spec.get("envFrom"), f"{field}.envFrom"),
        working_dir=spec.get("workingDir") or None,
        requests=requests,
        limits=limits,
        ports=_ports(spec.get("ports"), f"{field}.ports"),
        liveness=_probe(spec.get("livenessProbe"), f"{field}.livenessProbe"),
        readiness=_probe(spec.get("readinessProbe"), f"{field}.readinessProbe"),
        startup=_probe(spec.get("startupProbe"), f"{field}.startupProbe"),
        post_start=hooks.get("postStart"),
        pre_stop=hooks.get("preStop"),
        sidecar=restart == "Always",
        user=_opt_int(security.get("runAsUser"), f"{field}.securityContext.runAsUser"),
        group=_opt_int(security.get("runAsGroup"), f"{field}.securityContext.runAsGroup"),
        stdin=spec.get("stdin") is True,
        stdin_once=spec.get("stdinOnce") is True,
        tty=spec.get("tty") is True,
        target=str(spec.get("targetContainerName") or ""),
        security=security,
        mounts=_maps(spec.get("volumeMounts"), f"{field}.volumeMounts"),
    )


def parse_pod(raw: Mapping[str, Any]) -> ParsedPod:
    """The parsed form of one API pod; raises `MalformedPod` with the path of the first invalid field."""
    meta = _map(raw.get("metadata"), "metadata")
    spec = _map(raw.get("spec"), "spec")
    for key in ("name", "uid"):
        if not isinstance(meta.get(key), str) or not meta[key]:
            raise MalformedPod(f"metadata.{key}", "Required value")
    security = _map(spec.get("securityContext"), "spec.securityContext")
    containers = tuple(
        _container(c, f"spec.containers[{i}]", security)
        for i, c in enumerate(_list(spec.get("containers"), "spec.containers"))
    )
    if not containers:
        raise MalformedPod("spec.containers", "Required value")
    inits = tuple(
        _container(c, f"spec.initContainers[{i}]", security)
        for i, c in enumerate(_list(spec.get("initContainers"), "spec.initContainers"))
    )
    ephemerals = tuple(
        _container(c, f"spec.ephemeralContainers[{i}]", security)
        for i, c in enumerate(_list(spec.get("ephemeralContainers"), "spec.ephemeralContainers"))
    )
    seen: set[str] = set()
    for container in inits + containers + ephemerals:
        if container.name in seen:
            raise MalformedPod("spec.containers", f"Duplicate value: {container.name!r}")
        seen.add(container.name)
    policy = spec.get("restartPolicy") or "Always"
    if policy not in RESTART_POLICIES:
        raise MalformedPod("spec.restartPolicy", f"Unsupported value: {policy!r}")
    gates = _list(spec.get("readinessGates"), "spec.readinessGates")
    return ParsedPod(
        namespace=str(meta.get("namespace") or "default"),
        name=meta["name"],
        uid=meta["uid"],
        labels=_map(meta.get("labels"), "metadata.labels"),
        annotations=_map(meta.get("annotations"), "metadata.annotations"),
        containers=containers,
        init_containers=inits,
        restart_policy=policy,
        grace_seconds=_int(
            spec.get("terminationGracePeriodSeconds"),
            "spec.terminationGracePeriodSeconds",
            DEFAULT_GRACE_SECONDS,
        ),
        active_deadline=_opt_int(spec.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds", 1),
        overhead=_quantities(spec.get("overhead"), "spec.overhead"),
        node_name=str(spec.get("nodeName") or ""),
        service_account=str(spec.get("serviceAccountName") or "default"),
        priority=_int(spec.get("priority"), "spec.priority", 0, -(2**31)),
        priority_class=str(spec.get("priorityClassName") or ""),
        readiness_gates=tuple(str(_map(g, "spec.readinessGates").get("conditionType")) for g in gates),
        ephemeral_containers=ephemerals,
        host_pid=bool(spec.get("hostPID")),
        host_ipc=bool(spec.get("hostIPC")),
        volumes={str(volume.get("name")): volume for volume in _maps(spec.get("volumes"), "spec.volumes")},
    )


def qos_class(pod: ParsedPod) -> QosClass:
    """The Kubernetes QoS class from cpu and memory of all containers, including init containers.

    A zero amount counts as not set. Guaranteed requires both limits on every container and equal requests.
    """
    any_set, guaranteed = False, True
    for container in pod.all_containers():
        for resource in ("cpu", "memory"):
            request, limit = container.request(resource), container.limit(resource)
            any_set |= bool(request) or bool(limit)
            guaranteed &= bool(limit) and request == limit
    if not any_set:
        return QosClass.BESTEFFORT
    return QosClass.GUARANTEED if guaranteed else QosClass.BURSTABLE


def pod_requests(pod: ParsedPod) -> dict[str, Quantity]:
    """Of containers and sidecars, or the peak while init containers run if that is higher, plus overhead."""
    inits = [(container.requests, container.sidecar) for container in pod.init_containers]
    return total([container.requests for container in pod.containers], inits, pod.overhead, overhead_for_all=True)


def pod_limits(pod: ParsedPod) -> dict[str, Quantity]:
    """As `pod_requests`; overhead increases an existing limit, it does not create one."""
    inits = [(container.limits, container.sidecar) for container in pod.init_containers]
    return total([container.limits for container in pod.containers], inits, pod.overhead, overhead_for_all=False)
