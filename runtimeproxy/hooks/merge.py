"""How a hook's answer changes what the runtime is asked for (spec 08 §11.2-§11.4). Pure: nothing given is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordlet.api.cri.api_pb2 import KeyValue
from koordlet.api.hooks.api_pb2 import LinuxContainerResources

_POSITIVE = ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
"""Fields in which zero is "not said"."""
_CPUSETS = ("cpuset_cpus", "cpuset_mems")
_MAIN = ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes")
"""An answer with none of these is no echo of a request but says one or two things only."""
OOM_RANGE = range(-1000, 1001)


def merged(
    asked: LinuxContainerResources | None, answered: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """What to send: the request's resources with the answer's (§11.3); with one side absent, the request's.

    A server that echoes the request may set a cpuset or score to nothing. A partial answer (`_MAIN` all zero) may not:
    of it an empty cpuset and a score of zero are "not said".
    """
    if asked is None or answered is None:
        return asked
    result = _with_numbers(asked, answered)
    partial = not any(getattr(answered, name) for name in _MAIN)
    if answered.oom_score_adj in OOM_RANGE and not (partial and answered.oom_score_adj == 0):
        result.oom_score_adj = answered.oom_score_adj
    for name in _CPUSETS:
        if getattr(answered, name) or not partial:
            setattr(result, name, getattr(answered, name))
    return result


def updated(
    known: LinuxContainerResources | None, asked: LinuxContainerResources | None
) -> LinuxContainerResources | None:
    """A container's whole resources after an update request (§11.4), in which what is zero or empty is not said;
    None when neither side is known."""
    if asked is None:
        return known
    result = _with_numbers(known or LinuxContainerResources(), asked)
    for name in _CPUSETS:
        if getattr(asked, name):
            setattr(result, name, getattr(asked, name))
    return result


def _with_numbers(base: LinuxContainerResources, over: LinuxContainerResources) -> LinuxContainerResources:
    """A copy of `base` with what both rules take from `over` alike."""
    result = LinuxContainerResources()
    result.CopyFrom(base)
    for name in _POSITIVE:
        if getattr(over, name) > 0:
            setattr(result, name, getattr(over, name))
    if over.cpu_quota != 0:  # -1 is unlimited
        result.cpu_quota = over.cpu_quota
    result.unified.update(over.unified)
    if 0 < result.memory_swap_limit_in_bytes < result.memory_limit_in_bytes and _limits(result) != _limits(base):
        # One of both was changed, and no kernel takes a limit of memory and swap below that of memory.
        result.memory_swap_limit_in_bytes = result.memory_limit_in_bytes
    return result


def _limits(resources: LinuxContainerResources) -> tuple[int, int]:
    return resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes


def variables(envs: Iterable[KeyValue]) -> dict[str, str]:
    """A request's list as a map: of duplicates the last counts (§11.2)."""
    return {env.key: env.value for env in envs}


def merged_envs(envs: Iterable[KeyValue], answered: Mapping[str, str]) -> list[KeyValue] | None:
    """The request's list with the answer's variables; None when it stays as it is.

    An answer with variables replaces the map: what it lacks goes. Order and duplicates stay, changed values are
    written in place (wherever a name stands twice, in both: programs differ in which they read), new names follow
    sorted. An answer without any says nothing.
    """
    envs = list(envs)
    now = variables(envs)
    if not answered or now == dict(answered):
        return None
    result = []
    for env in envs:
        value = answered.get(env.key)
        if value is None:
            continue
        if value == now[env.key]:
            result.append(env)
        else:
            changed = KeyValue()
            changed.CopyFrom(env)  # with what a later version of the message may have
            changed.value = value
            result.append(changed)
    return result + [KeyValue(key=name, value=answered[name]) for name in sorted(answered.keys() - now.keys())]
