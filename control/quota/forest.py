"""All quotas of a cluster: which pod belongs to which quota, and the trees that count them (spec 06 §5.2, §5.3, §5.12).

Quotas and pods come in any order. A change of a quota only marks the trees as stale; they are built again at the next
read. Changes of pods are applied at once. Both ways give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from control.quota.amounts import Amounts, add_to, from_list, masked
from control.quota.calls import REQUEST_DELTA, RESET, USED_DELTA, Call, plain_call
from control.quota.figures import QuotaFigures, QuotaPod, RuntimeRules
from control.quota.info import QuotaInfo
from control.quota.podquota import quota_of_pod
from control.quota.tree import QuotaTree
from koordlet.api import names

_OUTSIDE = frozenset((names.DEFAULT_QUOTA, names.SYSTEM_QUOTA))


@dataclass(frozen=True)
class ForestRules:
    """Arguments and feature gates that concern the figures."""

    tree: RuntimeRules = field(default_factory=RuntimeRules)
    multiple_trees: bool = False
    """MultiQuotaTree; without it the label tree-id is ignored."""
    default_disabled: bool = False
    """DisableDefaultQuota: a pod without a known quota in its label has none."""


@dataclass(slots=True, eq=False)
class _Route:
    """The pods that name the same quota in the same namespace: they have the same quota."""

    quota: QuotaFigures | None = None
    pods: set[str] = field(default_factory=set)


class QuotaForest:
    """See the module text. Reading methods bring the trees up to date first."""

    def __init__(
        self,
        rules: ForestRules | None = None,
        total: Callable[[], Mapping[str, int]] = dict,
        call: Call = plain_call,
    ) -> None:
        """`total()`: allocatable of all nodes."""
        self.rules = rules or ForestRules()
        self._call = call
        self._total = total
        self._seen_total: Mapping[str, int] | None = None
        self._quotas: dict[str, QuotaFigures] = {}
        self._tree_ids: dict[str, str] = {}
        """By quota: the tree in which it was first seen."""
        self._trees: dict[str, QuotaTree] = {"": QuotaTree("", self.rules.tree, call)}
        self._pods: dict[str, QuotaPod] = {}
        self._routes: dict[tuple[str, str], _Route] = {}
        self._bound: dict[str, list[str]] = {}
        """Namespace -> the quotas that list it."""
        self._stale = False
        self._routes_stale = False
        self.version = 0
        """Number of changes of quotas."""

    # Quotas

    def info(self, name: str) -> QuotaInfo | None:
        """The version of a quota that counts."""
        quota = self._quotas.get(name)
        return quota.info if quota is not None else None

    def differs(self, info: QuotaInfo) -> bool:
        """Whether `put` would change anything."""
        return info.name != names.ROOT_QUOTA and self.info(info.name) != info

    def put(self, info: QuotaInfo) -> bool:
        """Add a quota or apply its new version. Returns whether anything changed."""
        if not self.differs(info):
            return False
        old = self._quotas.get(info.name)
        quota = QuotaFigures(info, self.rules.tree, outside=info.name in _OUTSIDE)
        self._quotas[info.name] = quota
        self._tree_ids.setdefault(info.name, info.tree if self.rules.multiple_trees else "")
        if old is None or (old.info.namespace, old.info.namespaces) != (info.namespace, info.namespaces):
            self._routes_stale = True
        self._changed()
        if old is not None:
            self._replace(old, quota)
        return True

    def remove(self, name: str) -> None:
        """A quota was deleted. Its pods get another one."""
        if self._quotas.pop(name, None) is not None:
            del self._tree_ids[name]
            self._routes_stale = True
            self._changed()

    def _changed(self) -> None:
        self._stale = True
        self.version += 1

    def _replace(self, old: QuotaFigures, new: QuotaFigures) -> None:
        """The pods of a quota belong to its new version, which may count other resources."""
        for pod in old.pods.values():
            pod.quota = None
            self._join(pod, new)
        for route in self._routes.values():
            if route.quota is old:
                route.quota = new

    # Pods

    def set_pod(self, pod: QuotaPod) -> None:
        """A pod appeared or changed. Whether it is assigned is kept."""
        known = self._pods.get(pod.uid)
        if known is not None:
            if (known.label, known.namespace, known.request, known.non_preemptible) == (
                pod.label,
                pod.namespace,
                pod.request,
                pod.non_preemptible,
            ):
                return
            pod.assigned = known.assigned
            self.drop_pod(pod.uid)
        self._pods[pod.uid] = pod
        route = self._routes.get((pod.label, pod.namespace))
        if route is None:
            route = self._routes[pod.label, pod.namespace] = _Route(self._resolve(pod.label, pod.namespace))
        route.pods.add(pod.uid)
        self._join(pod, route.quota)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._leave(pod)
        route = self._routes[pod.label, pod.namespace]
        route.pods.discard(uid)
        if not route.pods:
            del self._routes[pod.label, pod.namespace]

    def assign(self, uid: str, assigned: bool) -> None:
        """A pod was counted on a node, or is no longer."""
        pod = self._pods.get(uid)
        if pod is None or pod.assigned == assigned:
            return
        pod.assigned = assigned
        if pod.quota is not None:
            self._count(pod.quota, pod, 1 if assigned else -1, used=True)

    def pod(self, uid: str) -> QuotaPod | None:
        return self._pods.get(uid)

    def _join(self, pod: QuotaPod, quota: QuotaFigures | None) -> None:
        pod.quota = quota
        if quota is None:
            pod.counted = None
            return
        pod.counted = masked(pod.request, quota.max)
        quota.pods[pod.uid] = pod
        self._count(quota, pod, 1, used=False)
        if pod.assigned:
            self._count(quota, pod, 1, used=True)

    def _leave(self, pod: QuotaPod) -> None:
        quota = pod.quota
        if quota is None:
            return
        if pod.assigned:
            self._count(quota, pod, -1, used=True)
        self._count(quota, pod, -1, used=False)
        del quota.pods[pod.uid]
        pod.quota = None

    def _count(self, quota: QuotaFigures, pod: QuotaPod, sign: int, *, used: bool) -> None:
        """Add the pod's amounts to what is used, or requested."""
        delta = _signed(pod, sign)
        np_delta = delta if pod.non_preemptible else {}
        if self._stale:
            add_to(quota.self_used if used else quota.self_request, delta)
            add_to(quota.self_np_used if used else quota.self_np_request, np_delta)
            return
        tree, operation = self._tree_of(quota), USED_DELTA if used else REQUEST_DELTA
        self._call(operation, tree.count_used if used else tree.count_request, quota, delta, np_delta)

    # Which quota

    def _resolve(self, label: str, namespace: str) -> QuotaFigures | None:
        """The quota of pods with this label in this namespace (§5.3)."""

        def exists(in_namespace: str, name: str) -> bool:
            quota = self._quotas.get(name)
            return quota is not None and quota.info.namespace == in_namespace

        name = quota_of_pod(
            label,
            namespace,
            exists=exists,
            bound=lambda quota: self._bound.get(quota, []),
            default_disabled=self.rules.default_disabled,
        )
        quota = self._quotas.get(name)
        if quota is None and not self.rules.default_disabled:
            quota = self._quotas.get(names.DEFAULT_QUOTA)
        return quota

    def _reroute(self) -> None:
        self._bound = {}
        for name in sorted(self._quotas):
            for namespace in self._quotas[name].info.namespaces:
                self._bound.setdefault(namespace, []).append(name)
        for (label, namespace), route in self._routes.items():
            quota = self._resolve(label, namespace)
            if quota is not route.quota:
                route.quota = quota
                for uid in route.pods:
                    pod = self._pods[uid]
                    self._leave(pod)
                    self._join(pod, quota)

    # Trees

    def _tree_of(self, quota: QuotaFigures) -> QuotaTree:
        return self._trees[self._tree_ids[quota.name]]

    def refresh(self) -> None:
        """Bring all trees up to date."""
        if self._stale:
            if self._routes_stale:
                self._routes_stale = False
                self._reroute()
            self._call(RESET, self._build)
            self._stale = False
            self._seen_total = None
        total = self._total()
        if total is not self._seen_total:
            self._seen_total = total
            self._set_totals(total)

    def _build(self) -> None:
        members: dict[str, list[QuotaFigures]] = {"": []}
        for name, quota in self._quotas.items():
            members.setdefault(self._tree_ids[name], []).append(quota)
        self._trees = {
            tree_id: self._trees.get(tree_id) or QuotaTree(tree_id, self.rules.tree, self._call) for tree_id in members
        }
        for tree_id, quotas in members.items():
            self._trees[tree_id].build(quotas)

    def _set_totals(self, cluster: Mapping[str, int]) -> None:
        """A tree has what its root quotas state, and the default tree what the others leave (§5.12)."""
        rest = dict(cluster)
        for tree_id, tree in self._trees.items():
            if not tree_id:
                continue
            tree.total = {}
            for quota in tree.quotas.values():
                if quota.info.is_tree_root:
                    amounts = from_list(quota.info.total)
                    add_to(tree.total, amounts)
                    if not quota.info.ignores_default_tree:
                        add_to(rest, amounts, -1)
        self._trees[""].total = {name: amount for name, amount in rest.items() if name in cluster}

    # Reading

    def get(self, name: str) -> QuotaFigures | None:
        self.refresh()
        return self._trees[""].root if name == names.ROOT_QUOTA else self._quotas.get(name)

    def tree(self, quota: QuotaFigures) -> QuotaTree:
        self.refresh()
        return self._trees[""] if quota is self._trees[""].root else self._tree_of(quota)

    def trees(self) -> Mapping[str, QuotaTree]:
        """By id; "" is the default tree."""
        self.refresh()
        return self._trees

    def quotas(self) -> Iterable[QuotaFigures]:
        """Every quota but the roots."""
        self.refresh()
        return self._quotas.values()

    def route(self, label: str, namespace: str) -> QuotaFigures | None:
        """The quota of pods with this label in this namespace."""
        self.refresh()
        route = self._routes.get((label, namespace))
        return route.quota if route is not None else self._resolve(label, namespace)


def _signed(pod: QuotaPod, sign: int) -> Amounts:
    counted = pod.counted or {}
    return counted if sign > 0 else {name: -amount for name, amount in counted.items()}
