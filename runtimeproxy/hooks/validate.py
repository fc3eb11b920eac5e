"""Checks a hook server's response. Pure.

Refused are values that the runtime or the kernel would reject with a misleading error, and cgroup parents outside the
pod's place in the cgroup tree. Only fields that differ from the request are checked: a server that echoes the request
is always valid. Values that the merge rules ignore (an OOM score out of range) are no errors (spec 08 §11.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import normpath

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from runtimeproxy.hooks.stages import HookRequest, HookResponse

UNLIMITED = -1
CPU_NUMBER_BOUND = 1 << 16
"""Greater than any kernel's number of CPUs and of memory nodes."""
_LIST_FORMAT = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_CGROUP_FILE = re.compile(r"[a-z][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)+")
_NUMBERS = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
_LISTS = ("cpuset_cpus", "cpuset_mems")


class InvalidHookResponse(ValueError):
    """A response that may not be used; the message names the field."""


def check(request: HookRequest, response: HookResponse) -> None:
    """Raises InvalidHookResponse."""
    if isinstance(request, PodSandboxHookRequest) and isinstance(response, PodSandboxHookResponse):
        _check_parent("cgroup_parent", request.cgroup_parent, response.cgroup_parent)
        _check_resources("resources", request.resources, response.resources)
    elif isinstance(request, ContainerResourceHookRequest) and isinstance(response, ContainerResourceHookResponse):
        _check_parent("pod_cgroup_parent", request.pod_cgroup_parent, response.pod_cgroup_parent)
        _check_resources("container_resources", request.container_resources, response.container_resources)
        _check_envs(request.container_envs, response.container_envs)
    else:
        raise TypeError(f"{type(response).__name__} is no response to {type(request).__name__}")


def _check_parent(field: str, requested: str, returned: str) -> None:
    if returned in ("", requested):
        return
    if ".." in returned.split("/") or not returned.isprintable():
        raise InvalidHookResponse(f"{field} {returned!r} is outside the cgroup tree")
    if normpath(returned).strip("/") in ("", "."):
        raise InvalidHookResponse(f"{field} {returned!r} is the root cgroup")


def _check_resources(field: str, requested: LinuxContainerResources, returned: LinuxContainerResources) -> None:
    for name in _NUMBERS:
        value: int = getattr(returned, name)
        if value < UNLIMITED and value != getattr(requested, name):
            raise InvalidHookResponse(f"{field}.{name} is {value}")
    for name in _LISTS:
        text: str = getattr(returned, name)
        if text not in ("", getattr(requested, name)) and not is_list(text):
            raise InvalidHookResponse(f"{field}.{name} {text!r} is not a list of numbers and ranges")
    for key, text in returned.unified.items():
        if requested.unified.get(key) != text and not (_CGROUP_FILE.fullmatch(key) and "\0" not in text):
            raise InvalidHookResponse(f"{field}.unified {key!r} is not a cgroup file")


def _check_envs(requested: Mapping[str, str], returned: Mapping[str, str]) -> None:
    envs = dict(returned)  # copied, as access to a protobuf map is slow
    names = "".join(envs)
    if "=" not in names and "\0" not in names and "" not in envs and "\0" not in "".join(envs.values()):
        return
    for name, value in envs.items():
        if (not name or "=" in name or "\0" in name or "\0" in value) and requested.get(name) != value:
            raise InvalidHookResponse(f"container_envs {name!r} is not a valid environment variable")


def is_list(text: str) -> bool:
    """Whether `text` has the kernel's list format: `0-3,8`, with ascending ranges."""
    if not _LIST_FORMAT.fullmatch(text):
        return False
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not int(low) <= int(high or low) < CPU_NUMBER_BOUND:
            return False
    return True
