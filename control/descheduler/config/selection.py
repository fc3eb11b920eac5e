"""Which pods a plugin may consider: namespaces and pod selectors of its arguments (spec 07 §2.3)."""

from __future__ import annotations

import msgspec

from control.component.errors import invalid
from control.descheduler.config.selectors import selector_errors
from control.descheduler.state.pods import PodRecord
from koordlet.api.meta import LabelSelector


class NamespaceRule(msgspec.Struct, rename="camel"):
    """Namespaces to include, or to exclude; at most one list may have entries."""

    include: list[str] = msgspec.field(default_factory=list)
    exclude: list[str] = msgspec.field(default_factory=list)

    def allows(self, namespace: str) -> bool:
        if self.include:
            return namespace in self.include
        return namespace not in self.exclude


class PodSelectorRule(msgspec.Struct, rename="camel"):
    """A named selector of pods; one without a selector is ignored."""

    name: str = ""
    selector: LabelSelector | None = None


def namespace_errors(rule: NamespaceRule | None, path: str) -> list[str]:
    """The errors of a namespace rule."""
    if rule is not None and rule.include and rule.exclude:
        return [invalid(path, {"include": rule.include, "exclude": rule.exclude}, "only one of both can be set")]
    return []


def pod_selector_errors(rules: list[PodSelectorRule], path: str) -> list[str]:
    """The errors of pod selectors."""
    return [
        error
        for index, rule in enumerate(rules)
        for error in selector_errors(rule.selector, f"{path}[{index}].selector")
    ]


def considered(pod: PodRecord, namespaces: NamespaceRule | None, selectors: list[PodSelectorRule]) -> bool:
    """Whether the pod's namespace is allowed and its labels match one of the selectors (no selectors: all match)."""
    if namespaces is not None and not namespaces.allows(pod.namespace):
        return False
    used = [rule.selector for rule in selectors if rule.selector is not None]
    return not used or any(selector.matches(pod.pod.metadata.labels) for selector in used)
