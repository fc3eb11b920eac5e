"""Parses details of an object that a CRI runtime returns only in a verbose status, as runtime-specific JSON (spec 08
§11.5). Pure.

containerd: `info` is `{"config": <the request's config>, "runtimeSpec": <OCI>, ...}`. CRI-O has only the OCI part, with
the cgroup parent among its annotations. Missing or unexpected values are unknown: no input raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordlet.api.cri.api_pb2 import ContainerStatusResponse
from koordlet.api.hooks.api_pb2 import HugepageLimit, LinuxContainerResources

INFO_KEY = "info"
CRIO_PARENT = "io.kubernetes.cri-o.CgroupParent"
_INT64 = range(-(2**63), 2**63)
_CONFIG_NUMBERS = (
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "memory_limit_in_bytes",
    "oom_score_adj",
    "memory_swap_limit_in_bytes",
)
_SPEC = (
    ("cpu", "period", "cpu_period"),
    ("cpu", "quota", "cpu_quota"),
    ("cpu", "shares", "cpu_shares"),
    ("cpu", "cpus", "cpuset_cpus"),
    ("cpu", "mems", "cpuset_mems"),
    ("memory", "limit", "memory_limit_in_bytes"),
)
"""Without swap: containerd sets the memory limit there itself, and an update that raises the limit would then fail."""


@dataclass(frozen=True, slots=True)
class ContainerDetails:
    """None: unknown."""

    resources: LinuxContainerResources | None = None
    envs: Mapping[str, str] | None = None


def sandbox_parent(info: Mapping[str, str]) -> str:
    """The cgroup parent of a sandbox, empty when unknown."""
    document = _document(info)
    parent = _at(document, "config", "linux", "cgroup_parent")
    if isinstance(parent, str) and parent:
        return parent
    annotated = _at(document, "runtimeSpec", "annotations", CRIO_PARENT)
    if isinstance(annotated, str) and annotated:
        return annotated
    path = _at(document, "runtimeSpec", "linux", "cgroupsPath")  # <parent>/<name>; with systemd <slice>:<prefix>:<name>
    return path.rpartition("/")[0] if isinstance(path, str) and path.startswith("/") else ""


def container_details(response: ContainerStatusResponse) -> ContainerDetails:
    """Resources from the status if it has them, else from the request's config and the OCI spec."""
    document = _document(response.info)
    resources: LinuxContainerResources | None = None
    if response.status.resources.HasField("linux"):
        resources = response.status.resources.linux
    else:
        config = _at(document, "config", "linux", "resources")
        spec = _at(document, "runtimeSpec", "linux", "resources")
        if isinstance(config, dict) or isinstance(spec, dict):
            resources = LinuxContainerResources()
            _take_config(resources, config)
            _take_spec(resources, spec)
            _put(resources, "oom_score_adj", _at(document, "runtimeSpec", "process", "oomScoreAdj"))
    return ContainerDetails(resources, _envs(_at(document, "config", "envs")))


def _take_config(resources: LinuxContainerResources, config: Any) -> None:
    for name in (*_CONFIG_NUMBERS, "cpuset_cpus", "cpuset_mems"):
        _put(resources, name, _at(config, name))
    pages = _at(config, "hugepage_limits")
    for page in pages if isinstance(pages, list) else ():
        size, limit = _at(page, "page_size"), _at(page, "limit")
        if isinstance(size, str) and type(limit) is int and 0 <= limit < 2**64:
            resources.hugepage_limits.append(HugepageLimit(page_size=size, limit=limit))
    _put_unified(resources, _at(config, "unified"))


def _take_spec(resources: LinuxContainerResources, spec: Any) -> None:
    """Applied values, updates included; a container without a limit has none here."""
    for group, key, name in _SPEC:
        _put(resources, name, _at(spec, group, key))
    _put_unified(resources, _at(spec, "unified"))


def _put(resources: LinuxContainerResources, name: str, value: Any) -> None:
    number = type(value) is int and value in _INT64 and not name.startswith("cpuset")
    if number or (isinstance(value, str) and name.startswith("cpuset")):
        setattr(resources, name, value)


def _put_unified(resources: LinuxContainerResources, unified: Any) -> None:
    if isinstance(unified, dict):
        resources.unified.update({key: value for key, value in unified.items() if isinstance(value, str)})


def _envs(listed: Any) -> dict[str, str] | None:
    if not isinstance(listed, list):
        return None
    pairs = ((_at(env, "key"), _at(env, "value")) for env in listed)
    return {key: value or "" for key, value in pairs if isinstance(key, str) and isinstance(value, str | None)}


def _document(info: Mapping[str, str]) -> Any:
    try:
        return json.loads(info.get(INFO_KEY, "null"))
    except (ValueError, RecursionError):
        return None


def _at(value: Any, *path: str) -> Any:
    """A member of nested objects; None where it is absent."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
