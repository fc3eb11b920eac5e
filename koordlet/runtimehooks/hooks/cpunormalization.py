"""CPU normalization: on CPUs faster than the cluster's reference CPU a limit needs less quota (spec 03 §4.8). Pure.

The manager writes the ratio to the Node. LS pods and pods without a QoS label get `ceil(quota / ratio)`. Batch
resources apply the ratio themselves, pinned pods have no quota, and a CPU burst starts from the normalized quota.
Strategy and hook in one.
"""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView, container_quota, normalized_quota, pod_quota
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    HookAnswer,
    HookContext,
    HookError,
    HookStage,
    followed_pods,
    running_containers,
)

QUOTA = "cpu.cfs_quota_us"
REASON = "CPUNormalization"


class CPUNormalization(PerPodStrategy):
    """Strategy and hook. Quotas that do not change are not set, so that ratio 1 restores all."""

    name = "cpunormalization"
    hook = "CPUNormalization"
    stages = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        if view.normalization <= 1:
            return QoSDecision(note="quotas unchanged: ratio 1")
        settings: list[DesiredSetting] = []
        for pod in followed_pods(view):
            if pod.normalizes:
                settings += _of_pod(pod, view.normalization)
        return QoSDecision(tuple(settings), note=f"quotas divided by {view.normalization:.2f}")

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The container's quota, from that of the runtime's request; the strategy sets the pod's."""
        quota = None if context.container is None else context.container.cfs_quota
        if context.pod.allocation_error:
            raise HookError(context.pod.allocation_error)
        if quota is None or quota <= 0 or not context.pod.normalizes:
            return NO_CHANGE
        return HookAnswer(cfs_quota=normalized_quota(quota, view.normalization))


def _of_pod(pod: PodView, ratio: float) -> Iterator[DesiredSetting]:
    spec = pod.meta.pod
    if spec is None:
        return
    about = about_pod(pod.meta.namespace, pod.meta.name)
    specs = {container.name: container for container in (*spec.spec.init_containers, *spec.spec.containers)}
    quotas = {directory: container_quota(specs[name]) for name, directory in running_containers(pod) if name in specs}
    for directory, quota in {pod.meta.cgroup_dir: pod_quota(spec), **quotas}.items():
        if quota > 0:
            yield DesiredSetting(Setting(QUOTA, directory), normalized_quota(quota, ratio), REASON, quota, about)
