"""Validation of pods and pod templates, and of updates of existing pods.

Covers the common mistakes: names, images, ports, resources, mounts, policies. Each function yields
`FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from control.standalone.errors import FieldError
from control.standalone.kinds import BUILTIN, NODE
from control.standalone.objectmeta import key_errors, name_error
from control.standalone.schema import fielderrors as fe
from control.standalone.schema import validation_selectors as selectors
from control.standalone.schema.structural import QUANTITY_MESSAGE, parse_quantity
from control.standalone.schema.validation_env import environment
from control.standalone.schema.validation_probes import (
    DEFAULT_GRACE_SECONDS,
    NON_NEGATIVE,
    PORT_RANGE,
    not_of_init_containers,
    port_name,
    probes_and_hooks,
)
from control.standalone.schema.validation_security import container_security, pod_security
from control.standalone.schema.validation_volumes import mounts, volume_source
from koordlet.api.resources import is_extended

Json = Mapping[str, Any]
_encode = msgspec.json.Encoder(order="sorted").encode

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
NODE_KIND = next(kind for kind in BUILTIN if kind.key == NODE)
_CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_QUOTA_RESOURCES = frozenset(
    {"pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims"}
)
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
IP_MESSAGE = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_NOT_EPHEMERAL = (
    "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "resizePolicy",
)  # fmt: skip
UPDATE_MESSAGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_pod(pod: Json, old: Json | None) -> Iterator[FieldError]:
    spec = pod.get("spec") or {}
    yield from pod_spec(spec, "spec")
    if (node := spec.get("nodeName")) and (problem := name_error(NODE_KIND, node, "spec.nodeName")):
        yield problem
    if old is None and spec.get("ephemeralContainers"):
        yield fe.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield fe.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    if old is not None:
        yield from _pod_update(spec, old.get("spec") or {})


def pod_spec(spec: Json, path: str) -> Iterator[FieldError]:
    volumes: set[str] = set()
    for at, volume in enumerate(spec.get("volumes") or ()):
        where = f"{path}.volumes[{at}]"
        yield from _label(volume.get("name"), f"{where}.name", volumes)
        sources = [key for key in volume if key != "name"]
        for source in sources[1:]:
            yield fe.forbidden(f"{where}.{source}", "may not specify more than 1 volume type")
        yield from volume_source(volume, where)
    yield from _claims(spec, path)
    if not spec.get("containers"):
        yield fe.required(f"{path}.containers")
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        for at, container in enumerate(spec.get(group) or ()):
            yield from _container(container, f"{path}.{group}[{at}]", names, volumes, spec)
    for at, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") != "Always":
            yield from not_of_init_containers(container, f"{path}.initContainers[{at}]")
    yield from _host_ports(spec, path)
    yield from _policies(spec, path)
    yield from quantities(spec.get("overhead"), f"{path}.overhead")
    for at, toleration in enumerate(spec.get("tolerations") or ()):
        yield from selectors.toleration(toleration, f"{path}.tolerations[{at}]")
    yield from selectors.labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from selectors.affinity(spec.get("affinity") or {}, f"{path}.affinity")
    yield from selectors.spread(spec.get("topologySpreadConstraints") or [], f"{path}.topologySpreadConstraints")
    yield from pod_security(spec, path)
    yield from _names_and_addresses(spec, path)
    gates: set[str] = set()
    for at, gate in enumerate(spec.get("schedulingGates") or ()):
        name = str(gate.get("name") or "")
        yield from key_errors(f"{path}.schedulingGates[{at}]", name)
        if name in gates:
            yield fe.duplicate(f"{path}.schedulingGates[{at}]", name)
        gates.add(name)


def _claims(spec: Json, path: str) -> Iterator[FieldError]:
    names: set[str] = set()
    for at, claim in enumerate(spec.get("resourceClaims") or ()):
        where = f"{path}.resourceClaims[{at}]"
        yield from _label(claim.get("name"), f"{where}.name", names)
        sources = [claim.get(field) for field in ("resourceClaimName", "resourceClaimTemplateName")]
        if sources.count(None) != 1:
            problem = "must specify one of" if sources.count(None) == 2 else "at most one of"
            message = f"{problem}: `resourceClaimName`, `resourceClaimTemplateName`"
            if sources.count(None) == 0:
                message = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            shown = {
                "Name": claim.get("name"),
                "ResourceClaimName": sources[0],
                "ResourceClaimTemplateName": sources[1],
            }
            yield fe.invalid(where, shown, message)


def _names_and_addresses(spec: Json, path: str) -> Iterator[FieldError]:
    for field in ("hostname", "subdomain"):
        if (name := spec.get(field)) and not LABEL.fullmatch(name):
            yield fe.invalid(f"{path}.{field}", name, LABEL_MESSAGE)
    for at, alias in enumerate(spec.get("hostAliases") or ()):
        yield from address(alias.get("ip") or "", f"{path}.hostAliases[{at}].ip")
    dns = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if not dns:
            yield fe.required(f"{path}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")
        elif not dns.get("nameservers"):
            message = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield fe.required(f"{path}.dnsConfig.nameservers", message)
    for at, server in enumerate((dns or {}).get("nameservers") or ()):
        yield from address(server, f"{path}.dnsConfig.nameservers[{at}]")
    for at, gate in enumerate(spec.get("readinessGates") or ()):
        yield from key_errors(f"{path}.readinessGates[{at}].conditionType", str(gate.get("conditionType") or ""))
    system = (spec.get("os") or {}).get("name")
    if system not in (None, "linux", "windows"):
        yield fe.not_supported(f"{path}.os", system, ("linux", "windows"))


def address(value: str, path: str) -> Iterator[FieldError]:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        yield fe.invalid(path, value, IP_MESSAGE)


def _host_ports(spec: Json, path: str) -> Iterator[FieldError]:
    for group in ("containers", "initContainers"):
        taken: set[str] = set()
        for i, container in enumerate(spec.get(group) or ()):
            for at, port in enumerate(container.get("ports") or ()):
                where = f"{path}.{group}[{i}].ports[{at}].hostPort"
                number = port.get("hostPort")
                if number:
                    name = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{number}"
                    if name in taken:
                        yield fe.duplicate(where, name)
                    taken.add(name)
                if spec.get("hostNetwork") and number and number != port.get("containerPort"):
                    yield fe.invalid(where, number, "must match `containerPort` when `hostNetwork` is true")


def _policies(spec: Json, path: str) -> Iterator[FieldError]:
    for field, supported in (
        ("restartPolicy", ("Always", "OnFailure", "Never")),
        ("dnsPolicy", ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
        ("preemptionPolicy", ("PreemptLowerPriority", "Never")),
    ):
        if spec.get(field) is not None and spec[field] not in supported:
            yield fe.not_supported(f"{path}.{field}", spec[field], supported)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and deadline < 1:
        yield fe.invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")


def _label(name: Any, path: str, seen: set[str]) -> Iterator[FieldError]:
    if not name:
        yield fe.required(path)
    elif len(name) > 63:
        yield fe.invalid(path, name, "must be no more than 63 characters")
    elif not LABEL.fullmatch(name):
        yield fe.invalid(path, name, LABEL_MESSAGE)
    elif name in seen:
        yield fe.duplicate(path, name)
    seen.add(str(name))


def _container(container: Json, path: str, names: set[str], volumes: set[str], spec: Json) -> Iterator[FieldError]:
    yield from _label(container.get("name"), f"{path}.name", names)
    image = container.get("image")
    if not image:
        yield fe.required(f"{path}.image")
    elif image != image.strip():
        yield fe.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    grace = spec.get("terminationGracePeriodSeconds")
    yield from probes_and_hooks(container, path, DEFAULT_GRACE_SECONDS if grace is None else grace)
    for field, supported in (
        ("terminationMessagePolicy", ("File", "FallbackToLogsOnError")),
        ("imagePullPolicy", ("Always", "IfNotPresent", "Never")),
        ("restartPolicy", _RESTART_POLICIES),
    ):
        if container.get(field) not in (None, *supported):
            yield fe.not_supported(f"{path}.{field}", container[field], supported)
    yield from _ports(container, path)
    yield from environment(container, path)
    yield from mounts(container, path, volumes)
    yield from resources(container.get("resources") or {}, f"{path}.resources")
    declared = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    for at, claim in enumerate((container.get("resources") or {}).get("claims") or ()):
        if claim.get("name") not in declared:
            which = ": " + ", ".join(sorted(map(str, declared))) if declared else " which is empty"
            message = f"must be one of the names in pod.spec.resourceClaims{which}"
            yield fe.not_found(f"{path}.resources.claims[{at}]", claim.get("name"), message)
    for policy in container.get("resizePolicy") or ():
        for field, supported in (
            ("resourceName", ("cpu", "memory")),
            ("restartPolicy", ("NotRequired", "RestartContainer")),
        ):
            if policy.get(field) not in supported:
                yield fe.not_supported(f"{path}.resizePolicy", policy.get(field) or "", supported)
    host_users = spec.get("hostUsers") is not False
    yield from container_security(
        container.get("securityContext") or {}, f"{path}.securityContext", host_users=host_users
    )


def _ports(container: Json, path: str) -> Iterator[FieldError]:
    names: set[str] = set()
    for at, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{at}]"
        number = port.get("containerPort")
        if number is None or number == 0:
            yield fe.required(f"{where}.containerPort")
        elif not 0 < number < 65536:
            yield fe.invalid(f"{where}.containerPort", number, PORT_RANGE)
        host = port.get("hostPort")
        if host and not 0 < host < 65536:
            yield fe.invalid(f"{where}.hostPort", host, PORT_RANGE)
        if port.get("protocol") not in (None, "TCP", "UDP", "SCTP"):
            yield fe.not_supported(f"{where}.protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
        if name := port.get("name"):
            if name in names:
                yield fe.duplicate(f"{where}.name", name)
            names.add(name)
            yield from port_name(str(name), f"{where}.name")


def quantities(amounts: Any, path: str) -> Iterator[FieldError]:
    """Every amount of a resource list must be a non-negative quantity."""
    for name, amount in (amounts or {}).items():
        quantity = parse_quantity(str(amount))
        if quantity is None:
            yield fe.invalid(f"{path}[{name}]", amount, QUANTITY_MESSAGE)
        elif str(quantity).startswith("-"):
            yield fe.invalid(f"{path}[{name}]", amount, NON_NEGATIVE)


def resources(requirements: Json, path: str) -> Iterator[FieldError]:
    limits, requests = requirements.get("limits") or {}, requirements.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        yield from quantities(amounts, f"{path}.{part}")
        for name, amount in amounts.items():
            where = f"{path}.{part}[{name}]"
            if problems := key_errors(where, name):
                yield from problems
                yield fe.invalid(where, name, "doesn't follow extended resource name standard")
            elif "/" not in name and name not in _CONTAINER_RESOURCES and not name.startswith("hugepages-"):
                if name not in _QUOTA_RESOURCES:
                    yield fe.invalid(where, name, "must be a standard resource type or fully qualified")
                yield fe.invalid(where, name, "must be a standard resource for containers")
            elif is_extended(name):
                quantity = parse_quantity(str(amount))
                if quantity is not None and quantity.milli_value() % 1000:
                    yield fe.invalid(f"{path}.{part}[{name}]", amount, "must be an integer")
    for name, amount in requests.items():
        request, limit = parse_quantity(str(amount)), parse_quantity(str(limits.get(name)))
        fixed = is_extended(name) or name.startswith("hugepages-")
        if name not in limits:
            if fixed:
                yield fe.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif request is None or limit is None:
            continue
        elif fixed and request != limit:
            yield fe.invalid(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}")
        elif request > limit:
            message = f"must be less than or equal to {name} limit of {limit}"
            yield fe.invalid(f"{path}.requests", str(request), message)
    named = {*limits, *requests}
    if any(name.startswith("hugepages-") for name in named) and not named & {"cpu", "memory"}:
        yield fe.forbidden(path, "HugePages require cpu or memory")


def _pod_update(new: Json, old: Json) -> Iterator[FieldError]:
    if not _only_seconds_differ(old.get("tolerations") or (), new.get("tolerations") or ()):
        message = "existing toleration can not be modified except its tolerationSeconds"
        yield fe.forbidden("spec.tolerations", message)
    old_gates = [gate.get("name") for gate in old.get("schedulingGates") or ()]
    if any(gate.get("name") not in old_gates for gate in new.get("schedulingGates") or ()):
        yield fe.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gates")
    if _frozen(new, gated=bool(old_gates)) != _frozen(old, gated=bool(old_gates)):
        yield fe.forbidden("spec", UPDATE_MESSAGE)


def validate_ephemeral_containers(pod: Json, old: Json | None) -> Iterator[FieldError]:
    """The subresource pods/ephemeralcontainers: containers are added, and never changed or removed."""
    spec, before = pod.get("spec") or {}, (old or {}).get("spec") or {}
    path, volumes = "spec.ephemeralContainers", {str(volume.get("name")) for volume in spec.get("volumes") or ()}
    names = {str(each.get("name")) for group in ("initContainers", "containers") for each in spec.get(group) or ()}
    targets = frozenset(names)
    for at, container in enumerate(spec.get("ephemeralContainers") or ()):
        where = f"{path}[{at}]"
        yield from _container(container, where, names, volumes, spec)
        for field in _NOT_EPHEMERAL:
            if container.get(field):
                yield fe.forbidden(f"{where}.{field}", "cannot be set for an Ephemeral Container")
        if (target := container.get("targetContainerName")) and target not in targets:
            yield fe.not_found(f"{where}.targetContainerName", target)
    present = {each.get("name"): each for each in spec.get("ephemeralContainers") or ()}
    for container in before.get("ephemeralContainers") or ():
        name = container["name"]
        if name not in present:
            yield fe.forbidden(path, f'existing ephemeral containers "{name}" may not be removed\n')
        elif present[name] != container:
            yield fe.forbidden(path, f'existing ephemeral containers "{name}" may not be changed\n')


def validate_resize(pod: Json, old: Json | None) -> Iterator[FieldError]:
    """The subresource pods/resize: only the containers' resources change."""
    spec, before = pod.get("spec") or {}, (old or {}).get("spec") or {}
    for group in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(group) or ()):
            yield from resources(container.get("resources") or {}, f"spec.{group}[{at}].resources")
        if _without_resources(spec.get(group)) != _without_resources(before.get(group)):
            yield fe.forbidden("spec", "only cpu and memory resources are mutable")


def _without_resources(containers: Iterable[Json] | None) -> list[Json]:
    return [{key: value for key, value in each.items() if key != "resources"} for each in containers or ()]


def _only_seconds_differ(old: Iterable[Json], new: Iterable[Json]) -> bool:
    """Whether every old toleration is still there, perhaps with other tolerationSeconds."""

    def identity(toleration: Json) -> bytes:
        return _encode({key: value for key, value in toleration.items() if key != "tolerationSeconds"})

    present = {identity(toleration) for toleration in new}
    return all(identity(toleration) in present for toleration in old)


def _frozen(spec: Json, gated: bool) -> Json:
    """The part of a pod's spec that can't change after its creation."""
    mutable = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    if gated:  # with scheduling gates, the pod's node selection may still change
        mutable |= {"nodeSelector", "affinity"}
    out = {key: value for key, value in spec.items() if key not in mutable and value not in ({}, [], None)}
    for group in ("containers", "initContainers"):
        if group in out:
            out[group] = [{key: value for key, value in c.items() if key != "image"} for c in out[group]]
    if (out.get("terminationGracePeriodSeconds") or 0) < 0:
        out["terminationGracePeriodSeconds"] = 1
    return out
