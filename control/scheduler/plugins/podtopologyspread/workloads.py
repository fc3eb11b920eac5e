"""The selector of default spreading, from the services and the controller that a pod belongs to (spec 05 §4).

Only the selectors of services, ReplicaSets, StatefulSets and ReplicationControllers are kept. `version(namespace)`
changes when a selector in the namespace changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from control.scheduler.framework.handle import Objects
from control.scheduler.state.pods import Shape
from koordlet.api.core import ReplicaSet, ReplicationController, Service, StatefulSet
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement, SelectorError

_API_VERSIONS: Final = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


class WorkloadSelectors:
    """Kept current by informers; empty without them."""

    def __init__(self, objects: Objects | None) -> None:
        self._versions: dict[str, int] = {}
        self._services: dict[str, dict[str, dict[str, str]]] = {}
        """namespace -> name -> selector"""
        self._controllers: dict[tuple[str, str, str], LabelSelector] = {}
        """(kind, namespace, name) -> selector, for the kinds of `_API_VERSIONS`"""
        if objects is not None:
            self._follow(objects, Service, self._service)
            for kind in (ReplicaSet, StatefulSet, ReplicationController):
                self._follow(objects, kind, self._controller)

    def version(self, namespace: str) -> int:
        return self._versions.get(namespace, 0)

    def selector(self, shape: Shape) -> LabelSelector | None:
        """The pods that every service and the controller of the pod select; None if neither selects any.

        A ReplicationController's labels replace those of services, as in kube-scheduler; the selectors of the other
        controllers are further requirements."""
        labels: dict[str, str] = {}
        for selector in self._services.get(shape.namespace, {}).values():
            if _covers(selector, shape.labels):
                labels.update(selector)
        expressions: list[LabelSelectorRequirement] = []
        owner = next((reference for reference in shape.pod.metadata.owner_references if reference.controller), None)
        if owner is not None and _API_VERSIONS.get(owner.kind) == owner.api_version:
            owner_selector = self._controllers.get((owner.kind, shape.namespace, owner.name))
            if owner_selector is not None and owner.kind == "ReplicationController":
                labels.update(owner_selector.match_labels)
            elif owner_selector is not None:
                expressions = _requirements(owner_selector)
        return LabelSelector(match_labels=labels, match_expressions=expressions) if labels or expressions else None

    def _follow(self, objects: Objects, kind: type[Any], take: Callable[[Any, bool], None]) -> None:
        objects.informer(kind).add_handler(
            on_add=lambda new: take(new, True),
            on_update=lambda _, new: take(new, True),
            on_delete=lambda old: take(old, False),
        )

    def _service(self, service: Service, exists: bool) -> None:
        meta = service.metadata
        known = self._services.setdefault(meta.namespace, {})
        before = known.get(meta.name)
        after = service.spec.selector if exists and service.spec.selector else None
        if after is None:
            known.pop(meta.name, None)
        else:
            known[meta.name] = after
        self._changed(meta.namespace, before != after)

    def _controller(self, controller: Any, exists: bool) -> None:
        meta = controller.metadata
        key = (controller.kind, meta.namespace, meta.name)
        before = self._controllers.get(key)
        after = _selector(controller) if exists else None
        if after is None:
            self._controllers.pop(key, None)
        else:
            self._controllers[key] = after
        self._changed(meta.namespace, before != after)

    def _changed(self, namespace: str, changed: bool) -> None:
        if changed:
            self._versions[namespace] = self._versions.get(namespace, 0) + 1


def _selector(controller: Any) -> LabelSelector | None:
    selector = controller.spec.selector
    return LabelSelector(match_labels=selector) if isinstance(selector, dict) else selector


def _covers(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _requirements(selector: LabelSelector) -> list[LabelSelectorRequirement]:
    """The selector as a list of requirements; none for a malformed selector."""
    try:
        selector.matches({})
    except SelectorError:
        return []
    labels = [
        LabelSelectorRequirement(key=key, operator="In", values=[value])
        for key, value in sorted(selector.match_labels.items())
    ]
    return [*labels, *selector.match_expressions]
