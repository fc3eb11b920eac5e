"""Validation of APIServices. They are stored and listed; requests to their groups are not forwarded to a Service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe

Json = Mapping[str, Any]
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def validate_api_service(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    group, version = spec.get("group") or "", spec.get("version") or ""
    name = obj["metadata"].get("name")
    if name != f"{version}.{group}":
        yield fe.invalid("metadata.name", name, f'must be `spec.version+"."+spec.group`: "{version}.{group}"')
    if not group and version != "v1":
        yield fe.required("spec.group", "only v1 may have an empty group and it better be legacy kube")
    if not _LABEL_1035.fullmatch(version) or len(version) > 63:
        yield fe.invalid("spec.version", version, _LABEL_1035_MESSAGE)
    for field, limit in (("groupPriorityMinimum", 20000), ("versionPriority", 1000)):
        value = spec.get(field) or 0
        if not 0 < value <= limit:
            yield fe.invalid(f"spec.{field}", value, f"must be positive and less than {limit}")
    service, insecure, bundle = spec.get("service"), spec.get("insecureSkipTLSVerify"), spec.get("caBundle")
    if service is None:
        if bundle:
            size = f"{len(bundle.rstrip('=')) * 3 // 4} bytes"  # of base64
            yield fe.invalid("spec.caBundle", size, "local APIServices may not have a caBundle")
        if insecure:
            yield fe.invalid("spec.insecureSkipTLSVerify", True, "local APIServices may not have insecureSkipTLSVerify")
        return
    for field in ("namespace", "name"):
        if not service.get(field):
            yield fe.required(f"spec.service.{field}")
    port = service.get("port")
    if port is not None and not 1 <= port <= 65535:
        detail = "port is not valid: must be between 1 and 65535, inclusive"
        yield fe.invalid("spec.service.port", port, detail)
    if insecure and bundle:
        yield fe.invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")
