"""Group identity: preemption on a CPU by class, pod, container and host application (spec 03 §4.5). Pure.

Anolis kernels have `cpu.bvt_warp_ns` (-1 yields, 2 takes precedence). Stock kernels have `cpu.idle`: such a group runs
only when no other task wants the CPU, and any waking task preempts it at once. There a class below 0 gets `cpu.idle`,
or the lowest weight where the kernel lacks it too. A class above 0 keeps the kubelet's weight, which is higher than
that of any idle group. Strategy and hook in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from koordlet.api.annotations.pod import cpu_qos
from koordlet.api.encoding.wire import WireError
from koordlet.api.sloconfig.resourceqos import CPU_POLICY_GROUP_IDENTITY, ResourceQOSStrategy
from koordlet.app.logging import get_logger
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision, Supports
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
from koordlet.system.cgroup.codecs import SHARES_MIN

log = get_logger(__name__)

BVT = "cpu.bvt_warp_ns"
IDLE = "cpu.idle"
SHARES = "cpu.shares"
SYSCTLS = (("sched_core", 0), ("sched_group_identity_enabled", 1))
"""Sysctls that a vendor kernel needs first, in this order; they exclude core scheduling."""
REASON = "GroupIdentity"
BY_QOS = {"LSE": "lsr", "LSR": "lsr", "LS": "ls", "BE": "be"}


def class_values(strategy: ResourceQOSStrategy) -> dict[str, int | None]:
    """Identity of the classes lsr, ls and be; None for a class that is switched off."""
    policies = strategy.policies
    selected = policies is None or policies.cpu_policy in ("", None, CPU_POLICY_GROUP_IDENTITY)
    identities: dict[str, int | None] = {}
    for name in ("lsr", "ls", "be"):
        qos_class = getattr(strategy, f"{name}_class")
        qos = qos_class.cpu_qos if qos_class is not None else None
        on = selected and qos is not None and qos.enable
        identities[name] = qos.group_identity if on and qos is not None else None
    return identities


def pod_value(pod: PodView, values: Mapping[str, int | None]) -> int:
    """The identity of the pod; the annotation of an LS pod may change it. Raises WireError for a malformed
    annotation."""
    name = BY_QOS.get(pod.raw_qos) or _by_kube(pod.meta.kube_qos, values)
    of_class = values[name] or 0
    own = None if pod.meta.pod is None else cpu_qos(pod.meta.pod.metadata.annotations)
    if own is None or pod.raw_qos != "LS":
        return of_class
    if not own.enable:
        return 0
    return of_class if own.group_identity is None else own.group_identity


def _by_kube(kube_qos: str, values: Mapping[str, int | None]) -> str:
    if kube_qos == "Guaranteed":
        return "lsr" if values["lsr"] is not None else "ls"
    return "be" if kube_qos == "BestEffort" else "ls"


class GroupIdentity(PerPodStrategy):
    """Strategy and hook. `supports` is called in each round: files appear with the kubelet's directories."""

    name = "groupidentity"
    hook = "GroupIdentity"
    stages = (HookStage.PRE_RUN_POD_SANDBOX,)

    def __init__(self, supports: Supports) -> None:
        self._supports = supports

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None or not view.qos_dirs:
            return None
        values = class_values(strategy)
        if all(value is None for value in values.values()):
            return QoSDecision(note="no class has an identity")
        settings = [*self._sysctls(view), *self._directories(view, values), *self._pods(view, values)]
        for app in view.host_apps:
            settings += self._identity(app.cgroup_dir, values.get(BY_QOS.get(app.qos, "")) or 0, None)
        means = (
            "bvt" if self._has_bvt(view) else "cpu.idle" if self._supports(IDLE, view.best_effort_dir) else "weights"
        )
        return QoSDecision(tuple(settings), note=f"by {means}")

    def _has_bvt(self, view: NodeView) -> bool:
        return self._supports(BVT, view.best_effort_dir)

    def _sysctls(self, view: NodeView) -> Iterator[DesiredSetting]:
        if self._has_bvt(view) and view.current(Setting(SYSCTLS[-1][0])) is not None:
            for name, value in SYSCTLS:
                if view.current(Setting(name)) is not None:
                    yield DesiredSetting(Setting(name), value, REASON)

    def _directories(self, view: NodeView, values: Mapping[str, int | None]) -> Iterator[DesiredSetting]:
        for kube_qos, name in (("Burstable", "ls"), ("BestEffort", "be")):
            directory = view.qos_dirs.get(kube_qos)
            if directory:
                yield from self._identity(directory, values[name] or 0, None)

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The pod's identity."""
        strategy = view.slo.resource_qos_strategy
        values = {} if strategy is None else class_values(strategy)
        if all(value is None for value in values.values()):
            return NO_CHANGE
        value = pod_value(context.pod, values)
        return answer_of(self._of_pod(view, context.pod, value, values, self._has_bvt(view)))

    def _pods(self, view: NodeView, values: Mapping[str, int | None]) -> Iterator[DesiredSetting]:
        bvt = self._has_bvt(view)
        for pod in followed_pods(view):
            try:
                value = pod_value(pod, values)
            except WireError as error:
                name = f"{pod.meta.namespace}/{pod.meta.name}"
                log.once(f"{pod.meta.uid}:{error}", "Annotation ignored", pod=name, error=str(error))
                value = pod_value(replace(pod, meta=replace(pod.meta, pod=None)), values)
            yield from self._of_pod(view, pod, value, values, bvt)
            if bvt:  # not with `cpu.idle`: inside a pod it would override the weight of a container
                about = about_pod(pod.meta.namespace, pod.meta.name)
                for _, directory in running_containers(pod):
                    yield from self._identity(directory, value, about, like=view.best_effort_dir)

    def _of_pod(
        self, view: NodeView, pod: PodView, value: int, values: Mapping[str, int | None], bvt: bool
    ) -> Iterator[DesiredSetting]:
        below = f"{view.best_effort_dir}/"
        if not bvt and pod.meta.cgroup_dir.startswith(below) and (values["be"] or 0) < 0:
            return  # the whole directory is idle; within it weights still count
        about = about_pod(pod.meta.namespace, pod.meta.name)
        yield from self._identity(pod.meta.cgroup_dir, value, about, like=view.best_effort_dir)

    def _identity(
        self, directory: str, value: int, about: About | None, like: str | None = None
    ) -> Iterator[DesiredSetting]:
        """`like`: the directory in which to check for files, where `directory` may not exist yet."""
        if not value or not directory:
            return
        where = directory if like is None else like
        if self._supports(BVT, where):
            yield DesiredSetting(Setting(BVT, directory), value, REASON, 0, about)
        elif value < 0 and self._supports(IDLE, where):
            yield DesiredSetting(Setting(IDLE, directory), 1, REASON, 0, about)
        elif value < 0:
            yield DesiredSetting(Setting(SHARES, directory), SHARES_MIN, REASON, None, about)
