"""The tree of ElasticQuotas as the webhooks see it: by name, children by parent, namespaces by quota (spec 04 §16.1).

What the informer tells is never judged, only filed: an object that exists, exists, whatever rules it breaks, and an
unknown parent simply has children. What a webhook has admitted is added at once (`expect`), so that two quotas
admitted one after the other are counted together before the informer tells of the first; such an entry falls away
when the informer tells of the quota, or after `EXPECT_SECONDS`, because a later webhook or the API server may have
refused the object. A dry run expects nothing.

The name of a quota is unique over all namespaces; of two objects of one name the one seen last counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from control.manager.caches import Caches
from control.manager.context import Context
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError, to_builtins
from koordlet.api.resources import ResourceList
from koordlet.app.clock import SYSTEM_CLOCK, Clock

EXPECT_SECONDS = 10.0
"""An admitted write reaches the informer within moments; what did not by then was not written."""


@dataclass(frozen=True)
class QuotaInfo:
    """What the rules ask of a quota."""

    name: str
    parent: str = names.ROOT_QUOTA
    is_parent: bool = False
    tree: str = ""
    is_tree_root: bool = False
    force: bool = False
    """allow-force-update: sums are not checked."""
    lends: bool = True
    min: ResourceList = field(default_factory=dict)
    max: ResourceList = field(default_factory=dict)
    guaranteed: ResourceList = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()

    @classmethod
    def of(cls, quota: ElasticQuota) -> QuotaInfo:
        """The rules' view of an object; a malformed annotation counts as absent."""
        labels, notes, name = quota.metadata.labels, quota.metadata.annotations, quota.metadata.name
        try:
            guaranteed = annotation.GUARANTEED.get(notes) or {}
        except WireError:
            guaranteed = {}
        return cls(
            name=name,
            parent=annotation.parent(name, labels),
            is_parent=annotation.is_parent(labels),
            tree=labels.get(names.LABEL_QUOTA_TREE_ID, ""),
            is_tree_root=annotation.is_tree_root(labels),
            force=annotation.allows_force_update(labels),
            lends=annotation.lends(labels),
            min=quota.spec.min,
            max=quota.spec.max,
            guaranteed=guaranteed,
            namespaces=tuple(annotation.namespaces(notes)),
        )


class Tree:
    """One state of the topology, with its indexes. Not changed once made."""

    def __init__(self, quotas: Iterable[QuotaInfo] = ()) -> None:
        self.quotas: Mapping[str, QuotaInfo] = {each.name: each for each in quotas}
        self._children: dict[str, list[str]] = {}
        self.namespaces: dict[str, str] = {}
        """Namespace -> the quota bound to it by annotation; the first by name."""
        for name in sorted(self.quotas):
            info = self.quotas[name]
            if info.parent:
                self._children.setdefault(info.parent, []).append(name)
            for namespace in info.namespaces:
                self.namespaces.setdefault(namespace, name)

    def get(self, name: str) -> QuotaInfo | None:
        return self.quotas.get(name)

    def children(self, name: str) -> list[QuotaInfo]:
        """The quotas below one, by name."""
        return [self.quotas[each] for each in self._children.get(name, ())]

    def siblings(self, info: QuotaInfo) -> list[QuotaInfo]:
        """The other quotas under the same parent."""
        return [each for each in self.children(info.parent) if each.name != info.name]

    def hierarchy(self) -> dict[str, list[str]]:
        """Parent -> children, for every quota and for the root."""
        parents = {names.ROOT_QUOTA, *self.quotas, *self._children}
        return {name: list(self._children.get(name, ())) for name in sorted(parents)}


class _Expected(NamedTuple):
    key: str
    info: QuotaInfo | None  # None: deleted
    until: float


class QuotaTopology:
    """The current tree; see the module text. Reads are cheap, the tree is made anew after a change."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._known: dict[str, QuotaInfo] = {}
        self._keys: dict[str, str] = {}  # name -> key of the object that is filed under it
        self._expected: dict[str, _Expected] = {}
        self._tree: Tree | None = None

    def follow(self, caches: Caches) -> None:
        """Be fed by the informer of ElasticQuotas."""
        caches.informer(ElasticQuota).add_handler(
            on_add=self.put, on_update=lambda _, new: self.put(new), on_delete=self.remove
        )

    def put(self, quota: ElasticQuota) -> None:
        """The object exists. What the scheduler writes onto it all the time (its use) changes nothing here."""
        name, info = quota.metadata.name, QuotaInfo.of(quota)
        unchanged = self._known.get(name) == info and name not in self._expected
        self._keys[name] = quota.metadata.key
        if not unchanged:
            self._known[name] = info
            self._forget(name)

    def remove(self, quota: ElasticQuota) -> None:
        """The object is gone; one of the same name elsewhere stays."""
        name = quota.metadata.name
        if self._keys.get(name) == quota.metadata.key:
            del self._keys[name], self._known[name]
            self._forget(name)

    def expect(self, name: str, key: str, info: QuotaInfo | None) -> None:
        """A write of the object `key` was admitted: the quota is going to be `info`, or gone."""
        self._expected[name] = _Expected(key, info, self._clock.monotonic() + EXPECT_SECONDS)
        self._tree = None

    def taken(self, name: str, key: str) -> bool:
        """Whether an object `key` must not be created because the name is in use.

        An admitted creation of the same object does not count: it may have been refused elsewhere, and the API
        server itself refuses a second object of one key.
        """
        self._expire()
        expected = self._expected.get(name)
        if expected is not None:
            return expected.info is not None and expected.key != key
        return name in self._known

    @property
    def tree(self) -> Tree:
        """What exists and what is expected."""
        self._expire()
        if self._tree is None:
            quotas = dict(self._known)
            for name, expected in self._expected.items():
                quotas.pop(name, None)
                if expected.info is not None:
                    quotas[name] = expected.info
            self._tree = Tree(quotas.values())
        return self._tree

    def tree_of(self, quota: str, namespace: str) -> str:
        """The tree id of the quota of that name, else of the quota bound to the namespace; empty: none."""
        tree = self.tree
        info = tree.get(quota) or tree.get(tree.namespaces.get(namespace, ""))
        return info.tree if info is not None else ""

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for name in [name for name, expected in self._expected.items() if expected.until <= now]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._expected.pop(name, None)
        self._tree = None


def page(tree: Tree) -> dict[str, Any]:
    """The debug page `/elasticQuota` (spec 04 §1.5)."""
    return {
        "quotaInfoMap": {
            name: {
                "name": name,
                "parentName": info.parent,
                "isParent": info.is_parent,
                "allowLentResource": info.lends,
                "max": to_builtins(info.max),
                "min": to_builtins(info.min),
            }
            for name, info in sorted(tree.quotas.items())
        },
        "quotaHierarchyInfo": tree.hierarchy(),
    }


_SHARED: WeakKeyDictionary[Caches, QuotaTopology] = WeakKeyDictionary()


def shared(context: Context) -> QuotaTopology:
    """The topology of the process: the quota webhooks, the pod webhooks and the debug page share it.

    It follows the informer while one of the two quota gates is on, and is empty otherwise.
    """
    found = _SHARED.get(context.caches)
    if found is None:
        found = _SHARED[context.caches] = QuotaTopology(context.clock)
        if any(context.gates.enabled(gate) for gate in ("ElasticMutatingWebhook", "ElasticValidatingWebhook")):
            found.follow(context.caches)
    return found
