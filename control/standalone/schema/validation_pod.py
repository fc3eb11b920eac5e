"""Validation of pods and pod templates, and of updates of existing pods.

Covers the common mistakes: names, images, ports, resources, mounts, policies. Each function yields
`FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from control.standalone.errors import FieldError
from control.standalone.kinds import BUILTIN, NODE
from control.standalone.objectmeta import name_error
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.structural import QUANTITY_MESSAGE, parse_quantity
from control.standalone.schema.validation_podparts import NON_NEGATIVE, container_parts, host_path, spec_parts

Json = Mapping[str, Any]
_encode = msgspec.json.Encoder(order="sorted").encode

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
NODE_KIND = next(kind for kind in BUILTIN if kind.key == NODE)
_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_PORT_RANGE = "must be between 1 and 65535, inclusive"
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
        yield from host_path(volume, where)
    containers = spec.get("containers") or ()
    if not containers:
        yield fe.required(f"{path}.containers")
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(group) or ()):
            yield from _container(container, f"{path}.{group}[{at}]", names, volumes)
    for at, container in enumerate(spec.get("initContainers") or ()):
        policy = container.get("restartPolicy")
        if policy not in (None, "Always", "Never", "OnFailure"):
            yield fe.not_supported(f"{path}.initContainers[{at}].restartPolicy", policy, ("Always",))
    yield from _policies(spec, path)
    yield from quantities(spec.get("overhead"), f"{path}.overhead")
    for at, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(toleration, f"{path}.tolerations[{at}]")
    yield from spec_parts(spec, path)
    if (host := spec.get("hostname")) and not LABEL.fullmatch(host):
        yield fe.invalid(f"{path}.hostname", host, LABEL_MESSAGE)
    gates: set[str] = set()
    for at, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name")
        if name in gates:
            yield fe.duplicate(f"{path}.schedulingGates[{at}]", gate.get("name"))
        gates.add(str(name))


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


def _container(container: Json, path: str, names: set[str], volumes: set[str]) -> Iterator[FieldError]:
    yield from _label(container.get("name"), f"{path}.name", names)
    image = container.get("image")
    if not image:
        yield fe.required(f"{path}.image")
    elif image != image.strip():
        yield fe.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    pull = container.get("imagePullPolicy")
    if pull is not None and pull not in ("Always", "IfNotPresent", "Never"):
        yield fe.not_supported(f"{path}.imagePullPolicy", pull, ("Always", "IfNotPresent", "Never"))
    yield from _ports(container, path)
    yield from container_parts(container, path)
    for at, env in enumerate(container.get("env") or ()):
        if not env.get("name"):
            yield fe.required(f"{path}.env[{at}].name")
        if env.get("value") and env.get("valueFrom"):
            message = "may not be specified when `value` is not empty"
            yield fe.invalid(f"{path}.env[{at}].valueFrom", "", message)
    paths: set[str] = set()
    for at, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{at}]"
        if not mount.get("name"):
            yield fe.required(f"{where}.name")
        elif mount["name"] not in volumes:
            yield fe.not_found(f"{where}.name", mount["name"])
        target = mount.get("mountPath")
        if not target:
            yield fe.required(f"{where}.mountPath")
        elif target in paths:
            yield fe.invalid(f"{where}.mountPath", target, "must be unique")
        paths.add(str(target))
    yield from resources(container.get("resources") or {}, f"{path}.resources")


def _ports(container: Json, path: str) -> Iterator[FieldError]:
    names: set[str] = set()
    for at, port in enumerate(container.get("ports") or ()):
        where = f"{path}.ports[{at}]"
        number = port.get("containerPort")
        if number is None or number == 0:
            yield fe.required(f"{where}.containerPort")
        elif not 0 < number < 65536:
            yield fe.invalid(f"{where}.containerPort", number, _PORT_RANGE)
        host = port.get("hostPort")
        if host and not 0 < host < 65536:
            yield fe.invalid(f"{where}.hostPort", host, _PORT_RANGE)
        if port.get("protocol") not in (None, "TCP", "UDP", "SCTP"):
            yield fe.not_supported(f"{where}.protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
        if name := port.get("name"):
            if name in names:
                yield fe.duplicate(f"{where}.name", name)
            names.add(name)


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
            if "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
                yield fe.invalid(f"{path}.{part}[{name}]", name, "must be a standard resource type or fully qualified")
                yield fe.invalid(f"{path}.{part}[{name}]", name, "must be a standard resource for containers")
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


def is_extended(name: str) -> bool:
    """Extended resources have a domain other than kubernetes.io, integer amounts and no overcommit."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _toleration(toleration: Json, path: str) -> Iterator[FieldError]:
    operator = toleration.get("operator") or "Equal"
    if operator not in ("Equal", "Exists", "Lt", "Gt"):
        yield fe.not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    if not toleration.get("key") and operator != "Exists":
        message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield fe.invalid(f"{path}.operator", operator, message)
    if operator == "Exists" and toleration.get("value"):
        yield fe.invalid(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    effect = toleration.get("effect")
    if effect and effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        yield fe.not_supported(f"{path}.effect", effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield fe.invalid(f"{path}.effect", effect or "", "effect must be 'NoExecute' when `tolerationSeconds` is set")


def _pod_update(new: Json, old: Json) -> Iterator[FieldError]:
    if not _only_seconds_differ(old.get("tolerations") or (), new.get("tolerations") or ()):
        message = "existing toleration can not be modified except its tolerationSeconds"
        yield fe.forbidden("spec.tolerations", message)
    old_gates = [gate.get("name") for gate in old.get("schedulingGates") or ()]
    if any(gate.get("name") not in old_gates for gate in new.get("schedulingGates") or ()):
        yield fe.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gates")
    if _frozen(new, gated=bool(old_gates)) != _frozen(old, gated=bool(old_gates)):
        yield fe.forbidden("spec", UPDATE_MESSAGE)


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
