"""Merges a hook's response into the request to the runtime (spec 08 §11.2-§11.4). Pure: arguments are not changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordlet.api.cri.api_pb2 import KeyValue
from koordlet.api.hooks.api_pb2 import LinuxContainerResources

_POSITIVE = ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
"""Fields in which zero means "not set"."""
_CPUSETS = ("cpuset_cpus", "cpuset_mems")
_MAIN = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes")
"""A response with none of these set is not an echo of the request but sets single fields only."""
OOM_RANGE = range(-1000, 1001)


def merged(
    requested: LinuxContainerResources | None, returned: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """Resources to send: the request's, overridden by the response's (§11.3); the request's when either is absent.

    A server that echoes the request may clear a cpuset or set the OOM score to zero. A partial response (all of `_MAIN`
    zero) may not: in it an empty cpuset and a score of zero mean "not set".
    """
    if requested is None or returned is None:
        return requested
    result = _with_numbers(requested, returned)
    partial = not any(getattr(returned, name) for name in _MAIN)
    if returned.oom_score_adj in OOM_RANGE and not (partial and returned.oom_score_adj == 0):
        result.oom_score_adj = returned.oom_score_adj
    for name in _CPUSETS:
        if getattr(returned, name) or not partial:
            setattr(result, name, getattr(returned, name))
    return result


def updated(
    known: LinuxContainerResources | None, requested: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """A container's resources after an update request (§11.4), in which zero or empty means "not set"; None when
    neither side is known."""
    if requested is None:
        return known
    result = _with_numbers(known or LinuxContainerResources(), requested)
    for name in _CPUSETS:
        if getattr(requested, name):
            setattr(result, name, getattr(requested, name))
    return result


def _with_numbers(base: LinuxContainerResources, override: LinuxContainerResources) -> LinuxContainerResources:
    """A copy of `base` with the fields of `override` that both rules treat alike."""
    result = LinuxContainerResources()
    result.CopyFrom(base)
    for name in _POSITIVE:
        if getattr(override, name) > 0:
            setattr(result, name, getattr(override, name))
    if override.cpu_quota != 0:  # -1 is unlimited
        result.cpu_quota = override.cpu_quota
    result.unified.update(override.unified)
    if 0 < result.memory_swap_limit_in_bytes < result.memory_limit_in_bytes and _limits(result) != _limits(base):
        # One of the two was changed, and the kernel rejects a memory-and-swap limit below the memory limit.
        result.memory_swap_limit_in_bytes = result.memory_limit_in_bytes
    return result


def _limits(resources: LinuxContainerResources) -> tuple[int, int]:
    return resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes


def variables(envs: Iterable[KeyValue]) -> dict[str, str]:
    """The environment of a request as a map: the last duplicate counts (§11.2)."""
    return {env.key: env.value for env in envs}


def merged_envs(envs: Iterable[KeyValue], returned: Mapping[str, str]) -> list[KeyValue] | None:
    """The request's list with the response's variables; None when it is unchanged.

    A response with variables replaces the whole map: variables it lacks are removed. Order and duplicates are kept,
    changed values are written in place (in every duplicate, as programs differ in which one they read), new names
    follow in sorted order. A response without variables changes nothing.
    """
    envs = list(envs)
    current = variables(envs)
    if not returned or current == dict(returned):
        return None
    result = []
    for env in envs:
        value = returned.get(env.key)
        if value is None:
            continue
        if value == current[env.key]:
            result.append(env)
        else:
            changed = KeyValue()
            changed.CopyFrom(env)  # with fields of later versions of the message
            changed.value = value
            result.append(changed)
    return result + [KeyValue(key=name, value=returned[name]) for name in sorted(returned.keys() - current.keys())]
