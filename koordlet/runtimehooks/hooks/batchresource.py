"""Batch resources: what a BE pod asks for as `kubernetes.io/batch-*` is its shares, quota, memory limit (spec 03 §4.7).

The kubelet knows nothing of these resources and starts such pods without any request or limit. Strategy and hook in
one, from the same values. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

from koordlet.api.annotations.pod import EXTENDED_RESOURCE_SPEC
from koordlet.api.core import Container
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY
from koordlet.api.sloconfig.threshold import CFS_QUOTA_POLICY
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.runtimehooks.stages import NOTHING, Answer, HookContext, Stage, answer_of, followed, running
from koordlet.system.cgroup.codecs import SHARES_MIN, UNLIMITED, milli_to_quota, milli_to_shares

SHARES, QUOTA, MEMORY = "cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"
NEUTRAL = {SHARES: SHARES_MIN, QUOTA: UNLIMITED, MEMORY: UNLIMITED}
"""What the kubelet gives to a pod that asks for nothing."""
REASON = "BatchResource"
BE = "BE"


def asks(containers: Iterable[Container]) -> bool:
    """Whether any of them asks for a batch resource."""
    wanted = {RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY}
    return any(wanted & (c.resources.requests.keys() | c.resources.limits.keys()) for c in containers)


def values(containers: Iterable[Container], normalization: float = 1.0, *, quota: bool = True) -> dict[str, int]:
    """Settings of these containers together: one for a container, all for its pod. One without a limit makes the sum
    unlimited; without `quota` the CPU is unlimited whatever they say."""
    found = list(containers)
    requests = [_amount(container.resources.requests, RESOURCE_BATCH_CPU) for container in found]
    cpu = _sum([_amount(container.resources.limits, RESOURCE_BATCH_CPU) for container in found])
    memory = _sum([_amount(container.resources.limits, RESOURCE_BATCH_MEMORY) for container in found])
    limit = milli_to_quota(cpu) if quota and cpu > 0 else UNLIMITED
    if limit > 0 and normalization > 1:
        limit = ceil(limit / normalization)
    return {SHARES: milli_to_shares(sum(max(one or 0, 0) for one in requests)), QUOTA: limit, MEMORY: memory}


def _amount(resources: Mapping[str, Quantity], name: str) -> int | None:
    amount = resources.get(name)
    return None if amount is None else amount.value()


def _sum(limits: list[int | None]) -> int:
    known = [limit for limit in limits if limit is not None and limit > 0]
    return sum(known) if known and len(known) == len(limits) else UNLIMITED


class BatchResource(PerPodStrategy):
    """Strategy and hook. While CPU suppress bounds best effort by a quota of its directory, pods have none of their
    own."""

    name = "batchresource"
    gate = "BatchResource"
    hook = "BatchResource"
    stages = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER_RESOURCES)

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        updates: list[DesiredSetting] = []
        for pod in followed(view):
            specs = _containers(pod)
            if specs:
                about = about_pod(pod.meta.namespace, pod.meta.name)
                updates += _of(view, pod.meta.cgroup_dir, specs.values(), about)
                whole, each = updates[-len(NEUTRAL) :], _init_containers(pod) | specs
                for name, directory in running(pod):
                    if name in each:
                        updates += map(_within, _of(view, directory, [each[name]], about), whole)
        return QoSDecision(tuple(updates))

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """The pod's values at its sandbox, a container's at the container's stages."""
        EXTENDED_RESOURCE_SPEC.get(context.annotations)  # raises: what is malformed must not pass as asking for nothing
        specs, container = _containers(context.pod), context.container
        if container is None:
            return answer_of(_of(view, "", specs.values(), None)) if specs else NOTHING
        return answer_of(_of(view, "", [specs[container.name]], None)) if container.name in specs else NOTHING


def _containers(pod: PodView) -> dict[str, Container]:
    """The containers of a BE pod that asks for batch resources, by name; none of another pod."""
    if pod.raw_qos != BE or pod.meta.pod is None or not asks(pod.meta.pod.spec.containers):
        return {}
    return {container.name: container for container in pod.meta.pod.spec.containers}


def _init_containers(pod: PodView) -> dict[str, Container]:
    """Sidecars among them. What they ask for is theirs, but no part of the pod's sums (spec 03 §4.7)."""
    spec = pod.meta.pod
    return {} if spec is None else {container.name: container for container in spec.spec.init_containers}


def _within(one: DesiredSetting, whole: DesiredSetting) -> DesiredSetting:
    """A container's setting, its quota no larger than the pod's: cgroup v1 refuses that."""
    if one.setting.resource != QUOTA or not 0 < int(whole.value) < int(one.value):
        return one
    return replace(one, value=whole.value)


def _of(view: NodeView, directory: str, specs: Iterable[Container], about: About | None) -> list[DesiredSetting]:
    threshold = view.slo.resource_used_threshold_with_be
    by_quota = threshold is not None and threshold.enable and threshold.cpu_suppress_policy == CFS_QUOTA_POLICY
    found = values(specs, view.normalization, quota=not by_quota)
    return [
        DesiredSetting(Setting(file, directory), value, REASON, NEUTRAL[file], about) for file, value in found.items()
    ]
