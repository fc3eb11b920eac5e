"""The quotas of one tree with their figures: requests and use of pods, summed up to the root (spec 06 §5.2, §5.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from control.quota.amounts import Amounts, add_to
from control.quota.calls import REFRESH_RUNTIME, Call
from control.quota.figures import QuotaFigures, RuntimeRules
from control.quota.info import QuotaInfo
from koordlet.api import names

_OUTSIDE = (names.DEFAULT_QUOTA, names.SYSTEM_QUOTA)
MAX_DEPTH: Final = 32
"""Levels below the root. The figures of a quota are computed through all levels above it."""


class QuotaTree:
    """`build` computes everything from the quotas' own pods; `count_request` and `count_used` apply changes."""

    def __init__(self, tree_id: str, rules: RuntimeRules, call: Call) -> None:
        self.id = tree_id
        self.rules = rules
        self._call = call
        self.total: Amounts = {}
        """What the whole tree has. Set it whenever it changes."""
        self.root = QuotaFigures(QuotaInfo(names.ROOT_QUOTA, parent=""), rules, outside=True)
        self.quotas: dict[str, QuotaFigures] = {}
        """All quotas but the root, by name."""

    def build(self, quotas: Iterable[QuotaFigures]) -> None:
        """Arrange these quotas and compute all sums. A quota whose parents do not lead to the root (the parent is
        missing, or a descendant), or that is more than MAX_DEPTH levels below it, stays unattached: it has no
        runtime."""
        self.quotas = {quota.name: quota for quota in quotas}
        root = self.root
        for quota in (root, *self.quotas.values()):
            quota.reset()
        root.attached = True
        below: dict[str, list[QuotaFigures]] = {}
        for name in sorted(self.quotas):
            below.setdefault(self.quotas[name].info.parent or names.ROOT_QUOTA, []).append(self.quotas[name])
        order, level = [root], [root]
        for _ in range(MAX_DEPTH):
            level = [child for parent in level for child in self._attach(parent, below.get(parent.name, ()))]
            order += level
        for quota in reversed(order):
            self._sum_up(quota)
        for quota in self.quotas.values():
            if not quota.attached:
                self._sum_up(quota)

    @staticmethod
    def _attach(parent: QuotaFigures, children: Sequence[QuotaFigures]) -> Sequence[QuotaFigures]:
        for child in children:
            child.parent, child.attached = parent, True
            if not child.outside:
                parent.children[child.name] = child
        return children

    def _sum_up(self, quota: QuotaFigures) -> None:
        """Add the own pods to what the children have added, and all of it to the parent."""
        add_to(quota.child_request, quota.self_request)
        add_to(quota.used, quota.self_used)
        add_to(quota.np_request, quota.self_np_request)
        add_to(quota.np_used, quota.self_np_used)
        add_to(quota.allocated, quota.self_used)
        for name in {*quota.child_request, *quota.min}:
            self._set_request(quota, name)
        for name in {*quota.allocated, *quota.min}:
            self._set_guaranteed(quota, name)
        parent = quota.parent
        if parent is None:
            return
        add_to(parent.child_request, {name: quota.limited(name) for name in quota.request})
        add_to(parent.used, quota.used)
        add_to(parent.np_request, quota.np_request)
        add_to(parent.np_used, quota.np_used)
        if not quota.outside:
            add_to(parent.allocated, quota.guaranteed)
            parent.level.add(quota)

    def count_request(self, quota: QuotaFigures, delta: Mapping[str, int], np_delta: Mapping[str, int]) -> None:
        """Pods of the quota request `delta` more (§5.4)."""
        _add(quota.self_request, delta)
        _add(quota.self_np_request, np_delta)
        node: QuotaFigures | None = quota
        while node is not None and (delta or np_delta):
            _add(node.np_request, np_delta)
            passed = {}
            for name, amount in delta.items():
                before = node.limited(name)
                node.child_request[name] = node.child_request.get(name, 0) + amount
                self._set_request(node, name)
                change = node.limited(name) - before
                if change:
                    passed[name] = change
            parent = node.parent
            if parent is not None and passed and not node.outside:
                parent.level.update(node, passed)
            delta, node = passed, parent

    def count_used(self, quota: QuotaFigures, delta: Mapping[str, int], np_delta: Mapping[str, int]) -> None:
        """Assigned pods of the quota use `delta` more."""
        _add(quota.self_used, delta)
        _add(quota.self_np_used, np_delta)
        node: QuotaFigures | None = quota
        allocated = delta
        while node is not None:
            _add(node.used, delta)
            _add(node.np_used, np_delta)
            allocated = self._allocate(node, allocated)
            node = node.parent

    def _allocate(self, quota: QuotaFigures, delta: Mapping[str, int]) -> Mapping[str, int]:
        """Returns by how much what is guaranteed changed."""
        passed = {}
        for name, amount in delta.items():
            quota.allocated[name] = quota.allocated.get(name, 0) + amount
            before = quota.guaranteed.get(name, 0)
            self._set_guaranteed(quota, name)
            change = quota.guaranteed[name] - before
            if change:
                passed[name] = change
        if passed and self.rules.guarantee and quota.parent is not None and not quota.outside:
            quota.parent.level.update(quota, passed)
        return {} if quota.outside else passed

    @staticmethod
    def _set_request(quota: QuotaFigures, name: str) -> None:
        amount = quota.child_request.get(name, 0)
        quota.request[name] = amount if quota.lends else max(amount, quota.min.get(name, 0))

    @staticmethod
    def _set_guaranteed(quota: QuotaFigures, name: str) -> None:
        quota.guaranteed[name] = max(quota.allocated.get(name, 0), quota.min.get(name, 0))

    def shared(self, name: str) -> int:
        """What the children of the root have together: the total without what default and system quota use."""
        taken = sum(self.quotas[outside].used.get(name, 0) for outside in _OUTSIDE if outside in self.quotas)
        return max(self.total.get(name, 0) - taken, 0)

    def runtime(self, quota: QuotaFigures, name: str) -> int:
        """What the quota may use of a resource now (§5.5). Default and system quota: max."""
        if quota is self.root:
            return self.shared(name)
        if quota.outside:
            return quota.max.get(name, 0)
        if quota.parent is None:
            return 0
        return quota.parent.level.runtime(quota.parent.children, quota, name, self.level_total(quota.parent, name))

    def runtimes(self, quota: QuotaFigures) -> Amounts:
        """`runtime` for the resources of max; of the root for those of the total."""
        return self._call(REFRESH_RUNTIME, self._runtimes, quota)

    def _runtimes(self, quota: QuotaFigures) -> Amounts:
        return {name: self.runtime(quota, name) for name in (self.total if quota is self.root else quota.max)}

    def level_total(self, parent: QuotaFigures, name: str) -> int:
        """What the children of a quota have together: its runtime without what its own pods use."""
        return max(self.runtime(parent, name) - parent.self_used.get(name, 0), 0)

    def scaled_min(self, quota: QuotaFigures) -> Amounts:
        """The min that the distribution uses (§5.6)."""
        parent = quota.parent
        if quota.outside or parent is None:
            return dict(quota.min)
        return {
            name: parent.level.scaled_min(parent.children, quota, name, self.level_total(parent, name))
            for name in quota.min
        }


def _add(total: Amounts, delta: Mapping[str, int]) -> None:
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
