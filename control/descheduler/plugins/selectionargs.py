"""The arguments with which plugins select the nodes they work on and the pods they may evict (spec 07 §6 to §8)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from control.descheduler.config.selection import (
    NamespaceRule,
    PodSelectorRule,
    considered,
    namespace_errors,
    pod_selector_errors,
)
from control.descheduler.config.selectors import selector_errors
from control.descheduler.framework.plugin import PluginArgs
from control.descheduler.state.cluster import NodeRecord
from control.descheduler.state.pods import PodRecord
from koordlet.api.meta import LabelSelector


class SelectionArgs(PluginArgs):
    """Base of the arguments of plugins that move pods between groups of nodes."""

    paused: bool = False
    dry_run: bool = False
    evictable_namespaces: NamespaceRule | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: list[PodSelectorRule] = msgspec.field(default_factory=list)
    node_fit: bool = True

    def check(self, path: str) -> list[str]:
        errors = namespace_errors(self.evictable_namespaces, f"{path}.evictableNamespaces")
        errors += selector_errors(self.node_selector, f"{path}.nodeSelector")
        return errors + pod_selector_errors(self.pod_selectors, f"{path}.podSelectors")

    def selected(self, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
        return [node for node in nodes if self.node_selector is None or self.node_selector.matches(node.labels)]

    def considers(self, pod: PodRecord) -> bool:
        return considered(pod, self.evictable_namespaces, self.pod_selectors)
