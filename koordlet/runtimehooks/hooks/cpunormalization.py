"""CPU normalization: on CPUs faster than the cluster's normal ones a limit is worth less quota (spec 03 §4.8). Pure.

The manager writes the ratio on the Node. Services and unlabelled pods get `ceil(quota / ratio)`; batch resources follow
the ratio by themselves, pinned pods have no quota, and a CPU burst starts from the normalized one. Strategy and hook
in one.
"""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView, container_quota, normalized_quota, pod_quota
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.runtimehooks.stages import NOTHING, Answer, HookContext, HookError, Stage, followed, running

QUOTA = "cpu.cfs_quota_us"
REASON = "CPUNormalization"


class CPUNormalization(PerPodStrategy):
    """Strategy and hook. Where a quota stays what it is nothing is wanted, so that ratio 1 gives everything back."""

    name = "cpunormalization"
    gate = "CPUNormalization"
    hook = "CPUNormalization"
    stages = (Stage.PRE_RUN_POD_SANDBOX, Stage.PRE_CREATE_CONTAINER, Stage.PRE_UPDATE_CONTAINER_RESOURCES)

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        if view.normalization <= 1:
            return QoSDecision(note="quotas are worth what they say")
        updates: list[DesiredSetting] = []
        for pod in followed(view):
            if pod.normalizes and not pod.allocation_error:
                updates += _of_pod(pod, view.normalization)
        return QoSDecision(tuple(updates), note=f"quotas divided by {view.normalization:.2f}")

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """The container's quota, from what the runtime was asked for; the pod's follows with the reconciler."""
        native = None if context.container is None else context.container.native.cfs_quota
        if context.pod.allocation_error:
            raise HookError(context.pod.allocation_error)
        if native is None or native <= 0 or not context.pod.normalizes:
            return NOTHING
        return Answer(cfs_quota=normalized_quota(native, view.normalization))


def _of_pod(pod: PodView, ratio: float) -> Iterator[DesiredSetting]:
    spec = pod.meta.pod
    if spec is None:
        return
    about = about_pod(pod.meta.namespace, pod.meta.name)
    specs = {container.name: container for container in (*spec.spec.init_containers, *spec.spec.containers)}
    quotas = {directory: container_quota(specs[name]) for name, directory in running(pod) if name in specs}
    for directory, quota in {pod.meta.cgroup_dir: pod_quota(spec), **quotas}.items():
        if quota > 0:
            yield DesiredSetting(Setting(QUOTA, directory), normalized_quota(quota, ratio), REASON, quota, about)
