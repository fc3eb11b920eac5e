"""A container's environment and its command line: `$(VAR)` expansion and the downward API.

Pure: `lookup` returns the values of ConfigMaps and Secrets. The rules are Kubernetes': envFrom first, then
env in order; a variable may refer to those defined before it; an unknown `$(VAR)` stays unchanged;
`$$` is a literal `$`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod
from koordlet.api.encoding.quantity import Quantity, QuantityError

Lookup = Callable[[str, str], Mapping[str, str] | None]
"""(kind, name) -> data of that ConfigMap or Secret in the pod's namespace, None when it does not exist."""

MAX_EXPANDED_CHARACTERS = 128 << 10
"""Linux rejects a longer argument or variable (MAX_ARG_STRLEN)."""
MAX_PROCESS_CHARACTERS = 6 << 20
"""Linux rejects more arguments and variables together, whatever the stack's limit is."""

_VAR = re.compile(r"\$(\$|\(([^()$]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


class EnvError(ValueError):
    """The environment is invalid; reported as CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class DownwardNodeInfo:
    """The downward API's values of the node: address, allocatable cpu (milli-cores) and memory (bytes)."""

    name: str
    ip: str
    allocatable_milli: int
    allocatable_memory: int
    service_env: Sequence[tuple[str, str]] = ()
    """Variables of every container: how pods reach the API server."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with the values of its variables; raises `EnvError` if the result is too long for a process."""
    length = len(text) + sum(len(values.get(match[2], "")) for match in _VAR.finditer(text) if match[1] != "$")
    if length > MAX_EXPANDED_CHARACTERS:
        raise EnvError(f"the expanded value has more than {MAX_EXPANDED_CHARACTERS} characters")

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _VAR.sub(replace, text)


def field_value(pod: ParsedPod, node: DownwardNodeInfo, path: str) -> str:
    """A field of the downward API; raises `EnvError` for one that it does not have."""
    plain = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": node.name,
        "spec.serviceAccountName": pod.service_account,
        "status.hostIP": node.ip,
        "status.hostIPs": node.ip,
        "status.podIP": node.ip,
        "status.podIPs": node.ip,
    }
    if path in plain:
        return plain[path]
    if match := _SUBSCRIPT.match(path):
        source = pod.labels if match[1] == "labels" else pod.annotations
        return source.get(match[2], "")
    raise EnvError(f"fieldRef.fieldPath: unsupported value {path!r}")


def _resource(pod: ParsedPod, container: ContainerSpec, node: DownwardNodeInfo, ref: Mapping[str, Any]) -> str:
    target = pod.find(ref["containerName"]) if ref.get("containerName") else container
    if target is None:
        raise EnvError(f"resourceFieldRef: no container {ref['containerName']!r}")
    side, _, resource = str(ref.get("resource", "")).partition(".")
    if side not in ("limits", "requests") or not resource:
        raise EnvError(f"resourceFieldRef.resource: unsupported value {ref.get('resource')!r}")
    amount = (target.limits if side == "limits" else target.requests).get(resource)
    if not amount:
        # An absent limit is the node's allocatable amount; an absent request is zero.
        fallback = {
            "cpu": Quantity.milli(node.allocatable_milli),
            "memory": Quantity.of(node.allocatable_memory),
        }
        amount = fallback.get(resource, Quantity("0")) if side == "limits" else Quantity("0")
    try:
        divisor = Quantity(str(ref.get("divisor") or "1"))
    except QuantityError as error:
        raise EnvError(f"resourceFieldRef.divisor: {error}") from error
    if divisor.is_zero():
        divisor = Quantity("1")
    if resource == "cpu":
        top, bottom = amount.milli_value(), divisor.milli_value()
    else:
        top, bottom = amount.value(), divisor.value()
    return str(-(-top // bottom))


def _keyed(kind: str, ref: Mapping[str, Any], lookup: Lookup) -> str | None:
    name, key = str(ref.get("name", "")), str(ref.get("key", ""))
    data = lookup(kind, name)
    if data is not None and key in data:
        return data[key]
    if ref.get("optional"):
        return None
    lower = kind.lower()
    raise EnvError(f'{lower} "{name}" not found' if data is None else f"couldn't find key {key} in {kind} {name}")


def sources(container: ContainerSpec) -> set[tuple[str, str]]:
    """(kind, name) of each ConfigMap and Secret that the environment refers to."""
    out: set[tuple[str, str]] = set()
    for entry in container.env_from:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if entry.get(field):
                out.add((kind, str(entry[field].get("name", ""))))
    for entry in container.env:
        value_from = entry.get("valueFrom") or {}
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if value_from.get(field):
                out.add((kind, str(value_from[field].get("name", ""))))
    return out


def environment(pod: ParsedPod, container: ContainerSpec, node: DownwardNodeInfo, lookup: Lookup) -> dict[str, str]:
    """The container's variables, in order of definition; raises `EnvError`."""
    out: dict[str, str] = dict(node.service_env)
    total = 0
    for entry in container.env_from:
        prefix = str(entry.get("prefix") or "")
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            ref = entry.get(field)
            if not ref:
                continue
            data = lookup(kind, str(ref.get("name", "")))
            if data is None and not ref.get("optional"):
                raise EnvError(f'{kind.lower()} "{ref.get("name")}" not found')
            out.update({prefix + key: value for key, value in (data or {}).items()})
    for entry in container.env:
        name = entry.get("name")
        if not isinstance(name, str) or not name or "=" in name:
            raise EnvError(f"env name {name!r} is not valid")
        value_from = entry.get("valueFrom") or {}
        value: str | None
        if value_from.get("fieldRef"):
            value = field_value(pod, node, str(value_from["fieldRef"].get("fieldPath", "")))
        elif value_from.get("resourceFieldRef"):
            value = _resource(pod, container, node, value_from["resourceFieldRef"])
        elif value_from.get("configMapKeyRef"):
            value = _keyed("ConfigMap", value_from["configMapKeyRef"], lookup)
        elif value_from.get("secretKeyRef"):
            value = _keyed("Secret", value_from["secretKeyRef"], lookup)
        elif value_from:
            raise EnvError(f"env {name}: unsupported valueFrom {sorted(value_from)}")
        else:
            value = expand(str(entry.get("value") or ""), out)
        if value is not None:
            out[name] = value
            total += len(value)
            _check_total(total)
    return out


def command_line(container: ContainerSpec, env: Mapping[str, str]) -> list[str]:
    """The arguments of the container's process; raises `EnvError`."""
    arguments = []
    total = 0
    for part in container.command + container.args:
        arguments.append(expand(part, env))
        total += len(arguments[-1])
        _check_total(total)
    return arguments


def _check_total(characters: int) -> None:
    if characters > MAX_PROCESS_CHARACTERS:
        raise EnvError(f"the expanded values have more than {MAX_PROCESS_CHARACTERS} characters")
