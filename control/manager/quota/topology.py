"""The tree of ElasticQuotas for the webhooks: by name, children by parent, namespaces by quota (spec 04 §16.1).

Objects from the informer are stored without validation: an existing object counts whatever rules it violates, and an
unknown parent can have children. A quota that a webhook admits is added at once (`expect`), so that two quotas admitted
in quick succession are validated together before the informer delivers the first. Such an entry is removed when the
informer delivers the quota, or after `EXPECTED_TTL_S`, because a later webhook or the API server may have refused the
object. A dry run adds nothing.

The name of a quota is unique over all namespaces; of two objects with the same name the last one delivered counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from control.manager.caches import Caches
from control.manager.context import ManagerContext
from control.quota.info import QuotaInfo, Tree
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import to_builtins
from koordlet.app.clock import SYSTEM_CLOCK, Clock

EXPECTED_TTL_S = 10.0
"""An admitted write normally reaches the informer within milliseconds; after this time it counts as not written."""


class _Expected(NamedTuple):
    key: str
    info: QuotaInfo | None  # None: deleted
    until: float


class QuotaTopology:
    """The current tree; see the module docstring. The tree is rebuilt on the first read after a change."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._known: dict[str, QuotaInfo] = {}
        self._keys: dict[str, str] = {}  # quota name -> `namespace/name` of the object
        self._expected: dict[str, _Expected] = {}
        self._tree: Tree | None = None

    def follow(self, caches: Caches) -> None:
        """Register with the informer of ElasticQuotas."""
        caches.informer(ElasticQuota).add_handler(
            on_add=self.put, on_update=lambda _, new: self.put(new), on_delete=self.remove
        )

    def put(self, quota: ElasticQuota) -> None:
        """Add or update an existing object. Frequent status writes of the scheduler do not invalidate the tree."""
        name, info = quota.metadata.name, QuotaInfo.of(quota)
        unchanged = self._known.get(name) == info and name not in self._expected
        self._keys[name] = quota.metadata.key
        if not unchanged:
            self._known[name] = info
            self._forget(name)

    def remove(self, quota: ElasticQuota) -> None:
        """Remove a deleted object; an object of the same name in another namespace is kept."""
        name = quota.metadata.name
        if self._keys.get(name) == quota.metadata.key:
            del self._keys[name], self._known[name]
            self._forget(name)

    def expect(self, name: str, key: str, info: QuotaInfo | None) -> None:
        """A write of the object `key` was admitted: the quota will be `info`, or deleted if `info` is None."""
        self._expected[name] = _Expected(key, info, self._clock.monotonic() + EXPECTED_TTL_S)
        self._tree = None

    def taken(self, name: str, key: str) -> bool:
        """Whether the name is in use, so that an object `key` must not be created.

        An admitted creation of the same object does not count: another webhook may have refused it, and the API server
        itself refuses a second object with the same key.
        """
        self._expire()
        expected = self._expected.get(name)
        if expected is not None:
            return expected.info is not None and expected.key != key
        return name in self._known

    @property
    def tree(self) -> Tree:
        """The existing and the expected quotas."""
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
        """The tree id of the quota with that name, else of the quota bound to the namespace; empty: none."""
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
                "allowLentResource": info.allow_lent,
                "max": to_builtins(info.max),
                "min": to_builtins(info.min),
            }
            for name, info in sorted(tree.quotas.items())
        },
        "quotaHierarchyInfo": tree.hierarchy(),
    }


_SHARED: WeakKeyDictionary[Caches, QuotaTopology] = WeakKeyDictionary()


def shared(context: ManagerContext) -> QuotaTopology:
    """The topology of the process, shared by the quota webhooks, the pod webhooks and the debug page.

    It follows the informer if one of the two quota feature gates is on; otherwise it is empty.
    """
    topology = _SHARED.get(context.caches)
    if topology is None:
        topology = _SHARED[context.caches] = QuotaTopology(context.clock)
        if any(context.gates.enabled(gate) for gate in ("ElasticMutatingWebhook", "ElasticValidatingWebhook")):
            topology.follow(context.caches)
    return topology
