"""Validation of the security contexts of pods and containers.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe

Json = Mapping[str, Any]

MAX_ID = 2**31 - 1
_SYSCTL = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SYSCTL_RE = re.compile(_SYSCTL)
_PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
_CONTEXT_FIELDS = (
    "capabilities", "privileged", "seLinuxOptions", "windowsOptions", "runAsUser", "runAsGroup", "runAsNonRoot",
    "readOnlyRootFilesystem", "allowPrivilegeEscalation", "procMount", "seccompProfile", "appArmorProfile",
)  # fmt: skip
"""In the order in which kube-apiserver shows them."""


def container_security(context: Json, path: str, *, host_users: bool) -> Iterator[FieldError]:
    """`host_users`: the pod is in the node's user namespace."""
    yield from _ids(context, path, "runAsUser", "runAsGroup")
    proc = context.get("procMount")
    if proc not in (None, "Default", "Unmasked"):
        yield fe.not_supported(f"{path}.procMount", proc, ("Default", "Unmasked"))
    elif proc == "Unmasked" and host_users:
        yield fe.invalid(f"{path}.procMount", proc, "`hostUsers` must be false to use `Unmasked`")
    yield from _profiles(context, path)
    if context.get("allowPrivilegeEscalation") is not False:
        return
    if context.get("privileged"):
        message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield fe.invalid(path, _shown(context), message)
    for capability in (context.get("capabilities") or {}).get("add") or ():
        if capability == "CAP_SYS_ADMIN":  # kube-apiserver knows no other spelling
            message = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            yield fe.invalid(path, _shown(context), message)


def pod_security(spec: Json, path: str) -> Iterator[FieldError]:
    context = spec.get("securityContext") or {}
    where = f"{path}.securityContext"
    yield from _ids(context, where, "runAsUser", "runAsGroup", "fsGroup")
    for at, group in enumerate(context.get("supplementalGroups") or ()):
        if not 0 <= group <= MAX_ID:
            yield fe.invalid(f"{where}.supplementalGroups[{at}]", group, _OUT_OF_RANGE)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        message = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield fe.invalid(f"{where}.shareProcessNamespace", True, message)
    yield from _sysctls(context, f"{where}.sysctls")
    policy = context.get("fsGroupChangePolicy")
    if policy not in (None, "Always", "OnRootMismatch"):
        yield fe.not_supported(f"{where}.fsGroupChangePolicy", policy, ("Always", "OnRootMismatch"))
    yield from _profiles(context, where)


_OUT_OF_RANGE = f"must be between 0 and {MAX_ID}, inclusive"


def _ids(context: Json, path: str, *names: str) -> Iterator[FieldError]:
    for name in names:
        value = context.get(name)
        if value is not None and not 0 <= value <= MAX_ID:
            yield fe.invalid(f"{path}.{name}", value, _OUT_OF_RANGE)


def _sysctls(context: Json, path: str) -> Iterator[FieldError]:
    names: set[str] = set()
    for at, sysctl in enumerate(context.get("sysctls") or ()):
        name = str(sysctl.get("name") or "")
        if not name:
            yield fe.required(f"{path}[{at}].name")
        elif len(name) > 253 or not _SYSCTL_RE.match(name):
            why = f"must have at most 253 characters and match regex {_SYSCTL}"
            yield fe.invalid(f"{path}[{at}].name", name, why)
        elif name in names:
            yield fe.duplicate(f"{path}[{at}].name", name)
        names.add(name)


def _profiles(context: Json, path: str) -> Iterator[FieldError]:
    """seccompProfile and appArmorProfile."""
    for field, title in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        profile = context.get(field)
        if not isinstance(profile, Mapping):
            continue
        kind, name, where = profile.get("type"), profile.get("localhostProfile"), f"{path}.{field}"
        if not kind:
            yield fe.required(f"{where}.type", f"type is required when {title}Profile is set" if name else "")
        elif kind not in _PROFILE_TYPES:
            yield fe.not_supported(f"{where}.type", kind, _PROFILE_TYPES)
        if kind != "Localhost":
            if name is not None:
                shown = {"Type": kind, "LocalhostProfile": name} if title == "seccomp" else name
                message = f"can only be set when {title} type is Localhost"
                yield fe.invalid(f"{where}.localhostProfile", shown, message)
        elif not name:
            yield fe.required(f"{where}.localhostProfile", f"must be set when {title} type is Localhost")
        elif title == "seccomp":
            yield from descending_path(str(name), f"{where}.localhostProfile")


def descending_path(value: str, path: str) -> Iterator[FieldError]:
    """A relative path that does not leave its directory."""
    if value.startswith("/"):
        yield fe.invalid(path, value, "must be a relative path")
    yield from without_parents(value, path)


def without_parents(value: str, path: str) -> Iterator[FieldError]:
    if ".." in value.split("/"):
        yield fe.invalid(path, value, "must not contain '..'")


def _shown(context: Json) -> Json:
    """The context as kube-apiserver shows it: all fields, with the names of its internal version."""
    shown = {name[0].upper() + name[1:]: context.get(name) for name in _CONTEXT_FIELDS}
    shown["SELinuxOptions"] = shown.pop("SeLinuxOptions")
    if capabilities := context.get("capabilities"):
        shown["Capabilities"] = {"Add": capabilities.get("add"), "Drop": capabilities.get("drop")}
    for name in ("SeccompProfile", "AppArmorProfile"):
        if profile := shown[name]:
            shown[name] = {"Type": profile.get("type"), "LocalhostProfile": profile.get("localhostProfile")}
    order = [name[0].upper() + name[1:] if name != "seLinuxOptions" else "SELinuxOptions" for name in _CONTEXT_FIELDS]
    return {name: shown[name] for name in order}
