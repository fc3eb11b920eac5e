"""Validation of Services, with Kubernetes' wording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.validation_pod import LABEL, LABEL_MESSAGE, address
from control.standalone.schema.validation_probes import PORT_RANGE, port_name
from control.standalone.schema.validation_selectors import labels

Json = Mapping[str, Any]

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def validate_service(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    kind = spec.get("type")
    if kind not in _TYPES:
        yield fe.not_supported("spec.type", kind, _TYPES)
    ports = spec.get("ports") or ()
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield fe.required("spec.ports")
    if kind == "ExternalName" and not spec.get("externalName"):
        yield fe.required("spec.externalName")
    yield from _ports(ports)
    yield from labels(spec.get("selector"), "spec.selector")
    if spec.get("sessionAffinity") not in (None, "", "ClientIP", "None"):
        yield fe.not_supported("spec.sessionAffinity", spec["sessionAffinity"], ("ClientIP", "None"))
    if (cluster := spec.get("clusterIP")) and cluster != "None" and kind != "ExternalName":
        yield from address(cluster, "spec.clusterIPs[0]")
    for at, external in enumerate(spec.get("externalIPs") or ()):
        yield from address(external, f"spec.externalIPs[{at}]")
    for at, port in enumerate(ports):
        if kind == "ClusterIP" and port.get("nodePort"):
            yield fe.forbidden(f"spec.ports[{at}].nodePort", "may not be used when `type` is 'ClusterIP'")
    yield from _no_port_twice(ports)
    policy = spec.get("externalTrafficPolicy")
    if policy not in (None, "", "Cluster", "Local"):
        yield fe.not_supported("spec.externalTrafficPolicy", policy, ("Cluster", "Local"))
    before = ((old or {}).get("spec") or {}).get("clusterIP")
    if before and kind != "ExternalName" and cluster != before:
        yield fe.invalid("spec.clusterIPs[0]", [cluster], "may not change once set")


def _ports(ports: Any) -> Iterator[FieldError]:
    names: set[str] = set()
    for at, port in enumerate(ports):
        path = f"spec.ports[{at}]"
        name, number, target = port.get("name"), port.get("port"), port.get("targetPort")
        if not name:
            if len(ports) > 1:
                yield fe.required(f"{path}.name")
        elif not LABEL.fullmatch(name):
            yield fe.invalid(f"{path}.name", name, LABEL_MESSAGE)
        elif name in names:
            yield fe.duplicate(f"{path}.name", name)
        names.add(str(name))
        if not isinstance(number, int) or not 0 < number < 65536:
            yield fe.invalid(f"{path}.port", number, PORT_RANGE)
        if port.get("protocol") not in (None, "", "TCP", "UDP", "SCTP"):
            yield fe.not_supported(f"{path}.protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
        if isinstance(target, str):
            yield from port_name(target, f"{path}.targetPort")
        elif isinstance(target, int) and not 0 < target < 65536:
            yield fe.invalid(f"{path}.targetPort", target, PORT_RANGE)


def _no_port_twice(ports: Any) -> Iterator[FieldError]:
    seen: set[tuple[Any, Any]] = set()
    for at, port in enumerate(ports):
        protocol = port.get("protocol") or "TCP"
        if (protocol, port.get("port")) in seen:
            shown = {
                "Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port.get("port"), "TargetPort": 0,
                "NodePort": 0,
            }  # fmt: skip
            yield fe.duplicate(f"spec.ports[{at}]", shown)
        seen.add((protocol, port.get("port")))
