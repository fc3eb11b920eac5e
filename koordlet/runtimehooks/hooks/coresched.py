"""Core scheduling: threads of different groups never run on one physical core at the same time (spec 03 §4.9). Pure.

With `policies.cpuPolicy: coreSched` the containers and sandboxes of pods of an enabled class get the cookie of their
group. By label a pod chooses another group of its namespace, a group of its own, or none. A class with `coreExpeller`
has groups of its own, so that on vendor kernels idle threads leave the core to it. `schedIdle` sets `cpu.idle` of the
directory of the class. The executor assigns the cookies (`resourceexecutor.cookies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from koordlet.api.annotations.pod import CORE_SCHED_EXCLUSIVE, CORE_SCHED_NONE, core_sched_group, core_sched_policy
from koordlet.api.qos import SYSTEM
from koordlet.api.sloconfig.resourceqos import CPU_POLICY_CORE_SCHED, ResourceQOSStrategy
from koordlet.audit import pod as about_pod
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.strategy import PerPodStrategy, QoSDecision
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.cookies import COOKIE, Cookies, group_value
from koordlet.runtimehooks.stages import followed_pods, running_containers
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.kernel import Feature

IDLE = "cpu.idle"
SYSCTLS = (("sched_group_identity_enabled", 0), ("sched_core", 1))
"""Sysctls that a vendor kernel needs first, in this order; they exclude group identity."""
REASON = "CoreSched"
EXPELLER = "-expeller"
BY_QOS = {"LSE": "lsr", "LSR": "lsr", "LS": "ls", "BE": "be"}


@dataclass(frozen=True, slots=True)
class ClassRule:
    """The settings of a class; all off with another policy."""

    enabled: bool = False
    expeller: bool = False
    idle: bool = False


Rules = Mapping[str, ClassRule]
"""lsr, ls and be."""


def class_rules(strategy: ResourceQOSStrategy) -> Rules:
    """The rules of NodeSLO."""
    selected = strategy.policies is not None and strategy.policies.cpu_policy == CPU_POLICY_CORE_SCHED
    rules = {}
    for name in ("lsr", "ls", "be"):
        qos_class = getattr(strategy, f"{name}_class")
        qos = qos_class.cpu_qos if qos_class is not None else None
        on = selected and qos is not None and bool(qos.enable)
        rules[name] = ClassRule(on, bool(qos.core_expeller), qos.sched_idle == 1) if on and qos else ClassRule()
    return rules


def kube_rule(kube_qos: str, rules: Rules) -> ClassRule:
    """The rule of a Kubernetes QoS directory or of a pod without a QoS label."""
    if kube_qos == "Guaranteed":
        return rules["lsr"] if rules["lsr"].enabled else rules["ls"]
    return rules["be"] if kube_qos == "BestEffort" else rules["ls"]


def group_of(pod: PodView, rules: Rules) -> str | None:
    """The pod's group, whose name may be empty; None for a pod without a cookie."""
    if pod.raw_qos == SYSTEM or pod.meta.pod is None:
        return None
    rule = rules[BY_QOS[pod.raw_qos]] if pod.raw_qos in BY_QOS else kube_rule(pod.meta.kube_qos, rules)
    labels = pod.meta.pod.metadata.labels
    policy = core_sched_policy(labels)
    if not rule.enabled or policy == CORE_SCHED_NONE:
        return None
    group = pod.meta.uid if policy == CORE_SCHED_EXCLUSIVE else core_sched_group(labels)
    if group and policy != CORE_SCHED_EXCLUSIVE:
        group = f"{pod.meta.namespace}/{group}"  # a tenant must not join the group of another one
    return group + EXPELLER if rule.expeller else group


class CoreSched(PerPodStrategy):
    """The strategy. `available` is the host's feature `core_sched`."""

    name = "coresched"

    def __init__(self, available: Feature) -> None:
        self._available = available

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None or not view.qos_dirs:
            return None
        rules = class_rules(strategy)
        if not any(rule.enabled for rule in rules.values()):
            return QoSDecision(note="no class has core scheduling")
        idle = tuple(_idle_directories(view, rules))
        if not self._available:
            return QoSDecision(idle, note=f"no cookies: {self._available.reason}")
        cookies = [desired for pod in followed_pods(view) for desired in _cookies(pod, rules)]
        groups = len({desired.value for desired in cookies})
        return QoSDecision((*_sysctls(view), *idle, *cookies), note=f"{groups} groups")


def _idle_directories(view: NodeView, rules: Rules) -> Iterator[DesiredSetting]:
    for kube_qos, directory in view.qos_dirs.items():
        if directory and kube_rule(kube_qos, rules).idle:
            yield DesiredSetting(Setting(IDLE, directory), 1, REASON, 0)


def _sysctls(view: NodeView) -> Iterator[DesiredSetting]:
    for name, value in SYSCTLS:
        if view.current(Setting(name)) is not None:
            yield DesiredSetting(Setting(name), value, REASON)


def _cookies(pod: PodView, rules: Rules) -> Iterator[DesiredSetting]:
    group = group_of(pod, rules)
    if group is None:
        return
    about = about_pod(pod.meta.namespace, pod.meta.name)
    directories = [directory for _, directory in running_containers(pod)]
    if pod.meta.sandbox_dir:
        directories.append(pod.meta.sandbox_dir)
    for directory in directories:
        yield DesiredSetting(Setting(COOKIE, directory), group_value(group), REASON, "", about)


def attach_cookies(registries: Registries, cookies: Cookies, pods: Callable[[], Iterable[PodMeta]]) -> None:
    """Cookies by container and outcomes of assignments, for Prometheus."""

    def rows() -> Iterator[tuple[tuple[str, ...], float]]:
        by_directory = {directory: (group, str(cookie)) for directory, group, cookie in cookies.groups()}
        for pod in pods():
            for container in pod.containers:
                if container.cgroup_dir in by_directory:
                    labels = (pod.name, pod.namespace, pod.uid, container.name, container.id)
                    yield (*labels, *by_directory[container.cgroup_dir]), 1.0

    registries.view("container_core_sched_cookie", rows)
    registries.view("core_sched_cookie_manage_status", cookies.outcomes)
