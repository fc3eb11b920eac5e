"""Validation of containers' probes, hooks and names of ports.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe

Json = Mapping[str, Any]

NON_NEGATIVE = "must be greater than or equal to 0"
PORT_RANGE = "must be between 1 and 65535, inclusive"
MAX_PORT_NAME_CHARACTERS = 15
DEFAULT_GRACE_SECONDS = 30
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PORT_NAME = re.compile(r"[-a-z0-9]+")


def probes_and_hooks(container: Json, path: str, grace_seconds: int) -> Iterator[FieldError]:
    """`grace_seconds`: of the pod, which bounds the sleep of its hooks."""
    for name in ("postStart", "preStop"):
        if isinstance(hook := (container.get("lifecycle") or {}).get(name), Mapping):
            yield from _handler(hook, f"{path}.lifecycle.{name}", grace_seconds)
    for name in _PROBES:
        if isinstance(probe := container.get(name), Mapping):
            yield from _probe(probe, f"{path}.{name}", name)


def not_of_init_containers(container: Json, path: str) -> Iterator[FieldError]:
    """What only an init container that keeps running may have."""
    for name in ("lifecycle", *_PROBES):
        if container.get(name) is not None:
            yield fe.forbidden(f"{path}.{name}", "may not be set for init containers without restartPolicy=Always")


def _handler(handler: Json, path: str, grace_seconds: int = DEFAULT_GRACE_SECONDS) -> Iterator[FieldError]:
    named = [name for name in _HANDLERS if handler.get(name) is not None]
    if not named:
        yield fe.required(path, "must specify a handler type")
        return
    for name in named[1:]:
        yield fe.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    action, where = handler[named[0]], f"{path}.{named[0]}"
    match named[0]:
        case "exec" if not action.get("command"):
            yield fe.required(f"{where}.command")
        case "httpGet":
            yield from port(action.get("port", 0), f"{where}.port")
            if action.get("scheme") not in (None, "HTTP", "HTTPS"):
                yield fe.not_supported(f"{where}.scheme", action["scheme"], ("HTTP", "HTTPS"))
        case "tcpSocket" | "grpc":
            yield from port(action.get("port", 0), f"{where}.port")
        case "sleep" if not 0 <= action.get("seconds", 0) <= grace_seconds:
            message = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_seconds})"
            yield fe.invalid(where, action["seconds"], message)


def _probe(probe: Json, path: str, name: str) -> Iterator[FieldError]:
    yield from _handler(probe, path)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if (probe.get(field) or 0) < 0:
            yield fe.invalid(f"{path}.{field}", probe[field], NON_NEGATIVE)
    grace = probe.get("terminationGracePeriodSeconds")
    if name == "readinessProbe":
        if grace is not None:
            yield fe.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
        return
    if grace is not None and grace <= 0:
        yield fe.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if probe.get("successThreshold", 1) != 1:
        yield fe.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")


def port(value: Any, path: str) -> Iterator[FieldError]:
    """A port by number or name."""
    if isinstance(value, str):
        yield from port_name(value, path)
    elif not 0 < value < 65536:
        yield fe.invalid(path, value, PORT_RANGE)


def port_name(name: str, path: str) -> Iterator[FieldError]:
    if len(name) > MAX_PORT_NAME_CHARACTERS:
        yield fe.invalid(path, name, f"must be no more than {MAX_PORT_NAME_CHARACTERS} characters")
    if not _PORT_NAME.fullmatch(name):
        yield fe.invalid(path, name, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    elif not re.search("[a-z]", name):
        yield fe.invalid(path, name, "must contain at least one letter (a-z)")
