"""Background reclaim on stock kernels: what `memory.wmark_*` does elsewhere, by `memory.reclaim` (cgroup v2).

Every running container with watermarks (`memoryQOS.wmarkRatio` and so on) and a memory limit is held against them by
`proactive.step`; containers far below are not even looked at. Gate CgroupReconcile. Pure but for what it remembers of
each container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordlet.api.sloconfig.resourceqos import MemoryQOS, ResourceQOSStrategy
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import Decision, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.strategies.memoryqos import amounts_of_container, config_of
from koordlet.qosmanager.strategies.proactive import LEAST, Marks, Watched, backed_off, marks, step, went_well
from koordlet.resourceexecutor import Action, Setting
from koordlet.resourceexecutor.actions import ActionOutcome
from koordlet.statesinformer.pods.model import ContainerMeta

NAME = "memoryreclaim"
RECLAIM, WATERMARK = "memory.reclaim", "memory.wmark_ratio"
REASON = "ProactiveReclaim"
NEAR = 0.9
"""Of the high mark, by the collector's figure, which lacks the kernel's own memory: below it nothing is read."""
NODE_BYTES = 64 << 20
"""A round, all containers together."""


class MemoryReclaim(Strategy):
    """The strategy. `supports` tells what the kernel has."""

    name = NAME
    gate = "CgroupReconcile"

    def __init__(self, supports: Supports) -> None:
        self._supports = supports
        self._watched: dict[str, Watched] = {}
        """By container directory."""

    def decide(self, view: NodeView) -> Decision | None:
        """See the module."""
        strategy = view.slo.resource_qos_strategy
        root = view.qos_dirs.get("Guaranteed", "")
        if strategy is None or not root:
            return None
        if self._supports(WATERMARK, root):
            return self._nothing("the kernel has watermarks of its own")
        if not self._supports(RECLAIM, root):
            return self._nothing("this kernel has no memory.reclaim: watermarks do nothing")
        watched: dict[str, Watched] = {}
        actions: list[Action] = []
        left, blind = NODE_BYTES, False
        for pod, meta, given in _candidates(view, strategy):
            now = view.memory_now(meta.cgroup_dir)
            if now is None:
                continue
            used, stalled = now
            blind = blind or stalled is None
            known, wanted = step(self._watched.get(meta.cgroup_dir), used, stalled, view.now, given)
            watched[meta.cgroup_dir] = known
            wanted = min(wanted, left)
            if wanted >= LEAST:
                left -= wanted
                about = about_pod(pod.meta.namespace, pod.meta.name, meta.name)
                actions.append(Action(Setting(RECLAIM, meta.cgroup_dir), wanted, REASON, about))
        self._watched = watched
        active = [known for known in watched.values() if known.active]
        note = f"{len(active)} containers above their watermark" if active else "nobody is above its watermark"
        if blind:
            note = "without pressure figures (PSI) nothing is reclaimed"
        return Decision(note=note, actions=tuple(actions))

    def acted(self, now: float, outcomes: Mapping[Setting, ActionOutcome]) -> None:
        """A kernel that found too few pages, or refused, is left alone for a while."""
        for setting, outcome in outcomes.items():
            known = self._watched.get(setting.cgroup_dir or "")
            if known is None or outcome is ActionOutcome.LATER:
                continue
            well = outcome is ActionOutcome.DONE
            self._watched[setting.cgroup_dir or ""] = (
                went_well(known) if well else backed_off(known, now, "no pages to take")
            )

    def _nothing(self, why: str) -> Decision:
        self._watched.clear()
        return Decision(note=why)


def marks_of(config: MemoryQOS, limit: int) -> Marks | None:
    """The container's watermarks; None where it has none."""
    scale = 50 if config.wmark_scale_permill is None else config.wmark_scale_permill
    return marks(limit, config.wmark_ratio or 0, scale, config.wmark_min_adj or 0)


def _candidates(view: NodeView, strategy: ResourceQOSStrategy) -> Iterator[tuple[PodView, ContainerMeta, Marks]]:
    """Containers that may be above their high mark."""
    for pod in view.pods:
        if not pod.active or pod.meta.pod is None:
            continue
        config = config_of(pod, strategy)
        if config is None:
            continue
        specs = {one.name: one for one in pod.meta.pod.spec.containers}
        for container in pod.containers:
            spec = specs.get(container.meta.name)
            if spec is None or not container.meta.running:
                continue
            given = marks_of(config, amounts_of_container(pod, spec).limit)
            if given is not None and (container.charged or 0) >= NEAR * given.high:
                yield pod, container.meta, given
