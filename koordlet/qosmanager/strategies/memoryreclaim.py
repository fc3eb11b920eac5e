"""Background reclaim on stock kernels: the effect of the vendor's `memory.wmark_*`, by `memory.reclaim` (cgroup v2).

Every running container with watermarks (`memoryQOS.wmarkRatio` and so on) and a memory limit is compared with them by
`proactive.step`. The view reads the memory of a container only if its last figure is near the high mark. Gate
CgroupReconcile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordlet.api.sloconfig.resourceqos import MemoryQOS, ResourceQOSStrategy
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.strategies.memoryqos import amounts_of_container, config_of
from koordlet.qosmanager.strategies.proactive import (
    MIN_STEP_BYTES,
    GroupState,
    Watermarks,
    backed_off,
    reclaimed,
    step,
    watermarks,
)
from koordlet.resourceexecutor import Action, Setting
from koordlet.resourceexecutor.actions import ActionOutcome
from koordlet.statesinformer.pods.model import ContainerMeta

NAME = "memoryreclaim"
RECLAIM, WATERMARK = "memory.reclaim", "memory.wmark_ratio"
REASON = "ProactiveReclaim"
DEFAULT_SCALE_PERMILL = 50
NEAR_RATIO = 0.9
"""Fraction of the high mark below which a container's memory is not read, by the collector's figure, which excludes
kernel memory."""
NODE_STEP_BYTES = 64 << 20
"""Limit per round, all containers together."""


class MemoryReclaim(Strategy):
    """The strategy."""

    name = NAME

    def __init__(self) -> None:
        self._states: dict[str, GroupState] = {}
        """By container directory."""

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        if strategy is None or not view.qos_dirs.get("Guaranteed"):
            return None
        if WATERMARK in view.memory_files:
            return self._inactive("the kernel has watermarks of its own")
        if RECLAIM not in view.memory_files:
            return self._inactive("this kernel has no memory.reclaim: watermarks have no effect")
        states: dict[str, GroupState] = {}
        actions: list[Action] = []
        remaining, without_psi = NODE_STEP_BYTES, False
        for pod, meta, marks in _candidates(view, strategy):
            reading = view.memory_now(meta.cgroup_dir)
            if reading is None:
                continue
            used, stalled = reading
            without_psi = without_psi or stalled is None
            state, amount = step(self._states.get(meta.cgroup_dir), used, stalled, view.now, marks)
            states[meta.cgroup_dir] = state
            amount = min(amount, remaining)
            if amount >= MIN_STEP_BYTES:
                remaining -= amount
                about = about_pod(pod.meta.namespace, pod.meta.name, meta.name)
                actions.append(Action(Setting(RECLAIM, meta.cgroup_dir), amount, REASON, about))
        self._states = states
        active = sum(state.active for state in states.values())
        note = f"{active} containers above their watermark" if active else "no container is above its watermark"
        if without_psi:
            note = "without pressure figures (PSI) nothing is reclaimed"
        return QoSDecision(note=note, actions=tuple(actions))

    def acted(self, now: float, outcomes: Mapping[Setting, ActionOutcome]) -> None:
        """A container whose reclaim found too few pages, or was refused, pauses."""
        for setting, outcome in outcomes.items():
            directory = setting.cgroup_dir or ""
            state = self._states.get(directory)
            if state is None or outcome is ActionOutcome.LATER:
                continue
            done = outcome is ActionOutcome.DONE
            self._states[directory] = reclaimed(state) if done else backed_off(state, now, "no pages to reclaim")

    def _inactive(self, reason: str) -> QoSDecision:
        self._states.clear()
        return QoSDecision(note=reason)


def watermarks_of(config: MemoryQOS, limit: int) -> Watermarks | None:
    """The container's watermarks; None without any."""
    scale = DEFAULT_SCALE_PERMILL if config.wmark_scale_permill is None else config.wmark_scale_permill
    return watermarks(limit, config.wmark_ratio or 0, scale, config.wmark_min_adj or 0)


def _candidates(view: NodeView, strategy: ResourceQOSStrategy) -> Iterator[tuple[PodView, ContainerMeta, Watermarks]]:
    """Containers that may be above their high mark."""
    for pod in view.pods:
        if not pod.active or pod.meta.pod is None:
            continue
        config = config_of(pod, strategy)
        if config is None:
            continue
        specs = {container.name: container for container in pod.meta.pod.spec.containers}
        for container in pod.containers:
            spec = specs.get(container.meta.name)
            if spec is None or not container.meta.running:
                continue
            marks = watermarks_of(config, amounts_of_container(pod, spec).limit)
            if marks is not None and (container.charged or 0) >= NEAR_RATIO * marks.high:
                yield pod, container.meta, marks
