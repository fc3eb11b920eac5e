"""The figures of one quota, and of the level of its children (spec 06 §5.4, §5.5, §5.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control.quota.amounts import Amounts, add_to, from_list
from control.quota.info import QuotaInfo
from control.quota.runtime import Share, distribute, scaled_minima


@dataclass(frozen=True)
class RuntimeRules:
    """How runtime is computed."""

    scale_min: bool = True
    """Minima are reduced where their sum exceeds what the parent has (§5.6)."""
    guarantee: bool = False
    """What is used is guaranteed, and no other quota may use the rest of the minimum (§5.7)."""


class QuotaFigures:
    """One quota. Amounts without an entry are 0, except in `max`: there the resource is unlimited."""

    __slots__ = (
        "allocated",
        "attached",
        "child_request",
        "children",
        "demand",
        "guaranteed",
        "info",
        "lends",
        "level",
        "max",
        "min",
        "name",
        "np_request",
        "np_used",
        "outside",
        "parent",
        "pods",
        "request",
        "self_np_request",
        "self_np_used",
        "self_request",
        "self_used",
        "used",
        "weight",
    )

    def __init__(self, info: QuotaInfo, rules: RuntimeRules, *, outside: bool) -> None:
        """`outside`: the quota takes no part in the distribution (root, default and system quota)."""
        self.info = info
        self.name = info.name
        self.outside = outside
        self.lends = info.allow_lent and not rules.guarantee
        self.max: Amounts = from_list(info.max)
        self.min: Amounts = {
            name: min(amount, self.max[name]) for name, amount in from_list(info.min).items() if name in self.max
        }
        """A minimum above the maximum, or for a resource without maximum, cannot be given."""
        self.weight: Amounts = from_list(info.weight)
        self.parent: QuotaFigures | None = None
        self.attached = False
        """Whether the chain of parents ends at the root."""
        self.children: dict[str, QuotaFigures] = {}
        self.level = Level(rules)
        self.pods: dict[str, QuotaPod] = {}
        """By uid: the pods directly in this quota."""
        self.self_request: Amounts = {}
        self.self_used: Amounts = {}
        self.self_np_request: Amounts = {}
        self.self_np_used: Amounts = {}
        self.reset()

    def reset(self) -> None:
        """Forget parent, children and everything that was summed up; the own pods' sums stay."""
        self.parent, self.attached = None, False
        self.children = {}
        self.level = Level(self.level.rules)
        self.child_request: Amounts = {}
        """Own pods and the limited requests of the children."""
        self.request: Amounts = {}
        self.used: Amounts = {}
        self.np_request: Amounts = {}
        self.np_used: Amounts = {}
        self.allocated: Amounts = {}
        self.guaranteed: Amounts = {}
        self.demand: Amounts = {}
        """What the parent's level counts for this child: the runtime if there is enough for every child."""

    def limited(self, name: str) -> int:
        """The request, at most max."""
        amount = self.request.get(name, 0)
        limit = self.max.get(name)
        return amount if limit is None or amount <= limit else limit

    def minimum(self, name: str, rules: RuntimeRules) -> int:
        amount = self.min.get(name, 0)
        return max(amount, self.guaranteed.get(name, 0)) if rules.guarantee else amount

    def share(self, name: str, minimum: int) -> Share:
        return Share(self.name, self.weight.get(name, 0), self.limited(name), minimum, self.lends)

    def path(self) -> list[QuotaFigures]:
        """This quota and its ancestors, without the root."""
        path: list[QuotaFigures] = []
        node: QuotaFigures | None = self
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path


@dataclass(slots=True, eq=False)
class QuotaPod:
    """A pod as quotas count it. `label`: the quota that it names; `request`: its whole request."""

    uid: str
    key: str
    label: str
    namespace: str
    request: Amounts
    non_preemptible: bool
    assigned: bool = False
    quota: QuotaFigures | None = None
    counted: Amounts | None = None
    """The part of the request that its quota counts."""


class Level:
    """The children of one quota. Without scarcity every child's runtime is its demand, and no child need be looked at;
    otherwise the distribution is computed, and kept until a figure or the total changes."""

    __slots__ = ("_changes", "_demand", "_kept", "_minima", "_scaled", "rules")

    def __init__(self, rules: RuntimeRules) -> None:
        self.rules = rules
        self._minima: Amounts = {}
        self._demand: Amounts = {}
        self._changes: dict[str, int] = {}
        self._kept: dict[str, tuple[int, int, dict[str, int]]] = {}
        """By resource: (number of changes, total, runtimes by child)."""
        self._scaled: dict[str, tuple[int, dict[str, int]]] = {}
        """By resource: (total, scaled minima by child). Minima change only when the tree is built again."""

    def add(self, child: QuotaFigures) -> None:
        """Count a new child."""
        add_to(self._minima, child.min)
        self.update(child, {*child.max, *child.min, *child.request, *child.guaranteed})

    def update(self, child: QuotaFigures, names: Iterable[str]) -> None:
        """Figures of the child for these resources have changed."""
        for name in names:
            demand = child.share(name, child.minimum(name, self.rules)).demand
            self._demand[name] = self._demand.get(name, 0) + demand - child.demand.get(name, 0)
            child.demand[name] = demand
            self._changes[name] = self._changes.get(name, 0) + 1

    def runtime(self, children: dict[str, QuotaFigures], child: QuotaFigures, name: str, total: int) -> int:
        """What `child` may use of a resource if all `children` have `total` together."""
        scarce = self._demand.get(name, 0) > total
        if not scarce and not (self.rules.scale_min and self._minima.get(name, 0) > total):
            return child.demand.get(name, 0)
        changes = self._changes.get(name, 0)
        kept = self._kept.get(name)
        if kept is None or kept[0] != changes or kept[1] != total:
            kept = self._kept[name] = (changes, total, self._distributed(children, name, total))
        return kept[2][child.name]

    def _distributed(self, children: dict[str, QuotaFigures], name: str, total: int) -> dict[str, int]:
        minima = self._scaled_minima(children, name, total)
        if self.rules.guarantee:
            minima = {key: max(amount, children[key].guaranteed.get(name, 0)) for key, amount in minima.items()}
        return distribute(total, [child.share(name, minima[child.name]) for child in children.values()])

    def scaled_min(self, children: dict[str, QuotaFigures], child: QuotaFigures, name: str, total: int) -> int:
        """The min of a child that the distribution uses (§5.6)."""
        if not self.rules.scale_min or self._minima.get(name, 0) <= total:
            return child.min.get(name, 0)
        return self._scaled_minima(children, name, total)[child.name]

    def _scaled_minima(self, children: dict[str, QuotaFigures], name: str, total: int) -> dict[str, int]:
        kept = self._scaled.get(name)
        if kept is None or kept[0] != total:
            minima = {child.name: child.min.get(name, 0) for child in children.values()}
            kept = self._scaled[name] = (total, scaled_minima(total, minima) if self.rules.scale_min else minima)
        return kept[1]
