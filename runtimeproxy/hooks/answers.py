"""What no hook server may answer: nonsense that the runtime or the kernel would take for its own bug, and ways out of
the pod's place in the cgroup tree. Pure.

Only what differs from the request is looked at: a server that echoes is never wrong. Values that the merge rules pass
over anyway (a score out of range) are no errors (spec 08 §11.3).
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
MAX_PROCESSOR = 1 << 16
"""Beyond every kernel's number of CPUs and memory nodes."""
_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_FILE = re.compile(r"[a-z][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)+")
_NUMBERS = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
_LISTS = ("cpuset_cpus", "cpuset_mems")


class BadAnswer(ValueError):
    """An answer that may not be used; the message names the field."""


def check(request: HookRequest, response: HookResponse) -> None:
    """Raises BadAnswer."""
    if isinstance(request, PodSandboxHookRequest) and isinstance(response, PodSandboxHookResponse):
        _check_parent("cgroup_parent", request.cgroup_parent, response.cgroup_parent)
        _check_resources("resources", request.resources, response.resources)
    elif isinstance(request, ContainerResourceHookRequest) and isinstance(response, ContainerResourceHookResponse):
        _check_parent("pod_cgroup_parent", request.pod_cgroup_parent, response.pod_cgroup_parent)
        _check_resources("container_resources", request.container_resources, response.container_resources)
        _check_envs(request.container_envs, response.container_envs)
    else:
        raise TypeError(f"{type(response).__name__} is no answer to {type(request).__name__}")


def _check_parent(field: str, asked: str, answered: str) -> None:
    if answered in ("", asked):
        return
    if ".." in answered.split("/") or not answered.isprintable():
        raise BadAnswer(f"{field} {answered!r} leads out of the cgroup tree")
    if normpath(answered).strip("/") in ("", "."):
        raise BadAnswer(f"{field} {answered!r} is the root")


def _check_resources(field: str, asked: LinuxContainerResources, answered: LinuxContainerResources) -> None:
    for name in _NUMBERS:
        value: int = getattr(answered, name)
        if value < UNLIMITED and value != getattr(asked, name):
            raise BadAnswer(f"{field}.{name} is {value}")
    for name in _LISTS:
        text: str = getattr(answered, name)
        if text not in ("", getattr(asked, name)) and not is_list(text):
            raise BadAnswer(f"{field}.{name} {text!r} is not a list of numbers and ranges")
    for key, text in answered.unified.items():
        if asked.unified.get(key) != text and not (_FILE.fullmatch(key) and "\0" not in text):
            raise BadAnswer(f"{field}.unified {key!r} is not a file of a cgroup")


def _check_envs(asked: Mapping[str, str], answered: Mapping[str, str]) -> None:
    envs = dict(answered)  # a message's map is slow to look into
    names = "".join(envs)
    if "=" not in names and "\0" not in names and "" not in envs and "\0" not in "".join(envs.values()):
        return
    for name, value in envs.items():
        if (not name or "=" in name or "\0" in name or "\0" in value) and asked.get(name) != value:
            raise BadAnswer(f"container_envs {name!r} cannot be a variable")


def is_list(text: str) -> bool:
    """Whether `text` is the kernel's list format: `0-3,8`, ranges ascending."""
    if not _LIST.fullmatch(text):
        return False
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not int(low) <= int(high or low) < MAX_PROCESSOR:
            return False
    return True
