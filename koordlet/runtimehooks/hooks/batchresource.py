"""Batch resources: `kubernetes.io/batch-*` of a BE pod become its shares, quota and memory limit (spec 03 §4.7). Pure.

The kubelet does not know these resources and starts such pods without requests and limits. Strategy and hook in one,
with the same values.
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
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    HookAnswer,
    HookContext,
    HookStage,
    answer_of,
    followed_pods,
    running_containers,
)
from koordlet.system.cgroup.codecs import SHARES_MIN, UNLIMITED, milli_to_quota, milli_to_shares

SHARES = "cpu.shares"
QUOTA = "cpu.cfs_quota_us"
MEMORY = "memory.limit_in_bytes"
NEUTRAL = {SHARES: SHARES_MIN, QUOTA: UNLIMITED, MEMORY: UNLIMITED}
"""The kubelet's values for a pod without requests and limits."""
MAX_AMOUNT = 1 << 48
"""Milli-cores or bytes; more than any machine has, and a sum over all containers of a pod still fits 63 bits."""
REASON = "BatchResource"
BE = "BE"


def has_batch_resources(containers: Iterable[Container]) -> bool:
    """Whether any of them has a request or limit of a batch resource."""
    batch = {RESOURCE_BATCH_CPU, RESOURCE_BATCH_MEMORY}
    return any(batch & (c.resources.requests.keys() | c.resources.limits.keys()) for c in containers)


def values(containers: Iterable[Container], normalization: float = 1.0, *, quota: bool = True) -> dict[str, int]:
    """The values for the sum of these containers: one for a container, all for its pod. A container without a limit
    makes the sum unlimited; without `quota` the CPU is unlimited."""
    resources = [container.resources for container in containers]
    requests = [_amount(each.requests, RESOURCE_BATCH_CPU) for each in resources]
    cpu = _sum([_amount(each.limits, RESOURCE_BATCH_CPU) for each in resources])
    memory = _sum([_amount(each.limits, RESOURCE_BATCH_MEMORY) for each in resources])
    limit = milli_to_quota(cpu) if quota and cpu > 0 else UNLIMITED
    if limit > 0 and normalization > 1:
        limit = ceil(limit / normalization)
    return {SHARES: milli_to_shares(sum(max(request or 0, 0) for request in requests)), QUOTA: limit, MEMORY: memory}


def _amount(resources: Mapping[str, Quantity], name: str) -> int | None:
    """At most `MAX_AMOUNT`, because kernel and protocols have 64-bit numbers."""
    amount = resources.get(name)
    return None if amount is None else min(amount.value(), MAX_AMOUNT)


def _sum(limits: list[int | None]) -> int:
    known = [limit for limit in limits if limit is not None and limit > 0]
    return sum(known) if known and len(known) == len(limits) else UNLIMITED


class BatchResource(PerPodStrategy):
    """Strategy and hook. While CPU suppress limits best effort by the quota of its directory, pods have no quota."""

    name = "batchresource"
    hook = "BatchResource"
    stages = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        settings: list[DesiredSetting] = []
        for pod in followed_pods(view):
            specs = _containers(pod)
            if specs:
                about = about_pod(pod.meta.namespace, pod.meta.name)
                of_pod = _settings(view, pod.meta.cgroup_dir, specs.values(), about)
                settings += of_pod
                by_name = _init_containers(pod) | specs
                for name, directory in running_containers(pod):
                    if name in by_name:
                        settings += map(_within, _settings(view, directory, [by_name[name]], about), of_pod)
        return QoSDecision(tuple(settings))

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The pod's values at the stage of its sandbox, a container's at those of the container."""
        EXTENDED_RESOURCE_SPEC.get(context.annotations)  # raises WireError: malformed must not count as empty
        specs = _containers(context.pod)
        container = context.container
        if container is None:
            return answer_of(_settings(view, "", specs.values(), None)) if specs else NO_CHANGE
        if container.name not in specs:
            return NO_CHANGE
        return answer_of(_settings(view, "", [specs[container.name]], None))


def _containers(pod: PodView) -> dict[str, Container]:
    """The containers of a BE pod with batch resources, by name; none for other pods."""
    if pod.raw_qos != BE or pod.meta.pod is None or not has_batch_resources(pod.meta.pod.spec.containers):
        return {}
    return {container.name: container for container in pod.meta.pod.spec.containers}


def _init_containers(pod: PodView) -> dict[str, Container]:
    """Includes sidecars. Their resources are not part of the sums of the pod (spec 03 §4.7)."""
    spec = pod.meta.pod
    return {} if spec is None else {container.name: container for container in spec.spec.init_containers}


def _within(of_container: DesiredSetting, of_pod: DesiredSetting) -> DesiredSetting:
    """The setting of a container, with a quota not above the pod's, which cgroup v1 refuses."""
    if of_container.setting.resource != QUOTA or not 0 < int(of_pod.value) < int(of_container.value):
        return of_container
    return replace(of_container, value=of_pod.value)


def _settings(view: NodeView, directory: str, specs: Iterable[Container], about: About | None) -> list[DesiredSetting]:
    threshold = view.slo.resource_used_threshold_with_be
    by_quota = threshold is not None and threshold.enable and threshold.cpu_suppress_policy == CFS_QUOTA_POLICY
    files = values(specs, view.normalization, quota=not by_quota)
    return [
        DesiredSetting(Setting(file, directory), value, REASON, NEUTRAL[file], about) for file, value in files.items()
    ]
