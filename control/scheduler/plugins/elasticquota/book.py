"""Feeds the quotas: pods from the API server are requests, pods that the table counts are use (spec 06 §5.3, §5.4).

The table also counts tentative changes, so admission holds in preemption and in explanations: use without the victims,
or with the members of a gang that were placed before. Nothing is stored: after a restart the same pods give the same
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from control.quota.amounts import Amounts, from_list
from control.quota.calls import (
    DELETE_QUOTA,
    POD_ADD,
    POD_DELETE,
    POD_UPDATE,
    RESERVE_POD,
    RESET,
    UNRESERVE_POD,
    UPDATE_QUOTA,
    Call,
    P,
    R,
    plain_call,
)
from control.quota.figures import QuotaFigures, QuotaPod
from control.quota.forest import ForestRules, QuotaForest
from control.quota.info import QuotaInfo
from control.scheduler.framework.handle import Handle
from control.scheduler.plugins.elasticquota.hooks import QuotaHooks
from control.scheduler.state.pods import POD, PodInfo, Shape
from koordlet.api import names
from koordlet.api.annotations.scheduling import quota_preemptible
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated, pod_requests
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.logging import get_logger

log = get_logger(__name__)

_MEMO: Final = "ElasticQuota"
DEFAULT_GRACE_S: Final = 30


@dataclass(frozen=True)
class PodRules:
    """Feature gates that concern pods."""

    ignore_overhead: bool = False
    """ElasticQuotaIgnorePodOverhead"""
    ignore_terminating: bool = False
    """ElasticQuotaIgnoreTerminatingPod: one grace period after the deadline a pod is not counted any more."""
    ignore_terminating_at_once: bool = False
    """ElasticQuotaImmediateIgnoreTerminatingPod"""


class QuotaBook:
    """The quotas of a scheduler; a `PodListener`."""

    def __init__(
        self,
        handle: Handle,
        rules: ForestRules,
        pod_rules: PodRules,
        hooks: QuotaHooks | None = None,
        call: Call = plain_call,
    ) -> None:
        """`call` calls every operation, to measure it."""
        self._table = handle.table
        self._hooks = hooks or None
        self._call = call
        self._clock = handle.clock
        self._rules = pod_rules
        self._total: tuple[int, Amounts] = (-1, {})
        """(position in the log of nodes, allocatable of all nodes)."""
        self.forest = QuotaForest(rules, self.total, self._forest_call if hooks else call)
        self.infos: dict[str, PodInfo] = {}
        """By uid: pods that the table counts."""
        self._known: set[str] = set()
        """uids of pods that the API server has."""
        self._deadlines: dict[str, tuple[float, Pod]] = {}
        """By uid of a terminating pod: when it is not counted any more."""
        self._keys: dict[str, str] = {}
        """Quota name -> `namespace/name` of the object that counts."""
        self.output_change: ElasticQuota | None = None
        """The last version of a quota that differs only in what schedulers write: it cannot help any pod."""
        self.requests_dropped = False
        """A pod without a node changed or was deleted, so others may be admitted. Reset by the reader."""
        self._table.listen(self)
        self._quotas = None if handle.objects is None else handle.objects.informer(ElasticQuota)
        if handle.objects is not None and self._quotas is not None:
            self._quotas.add_handler(self.quota_seen, lambda _, new: self.quota_seen(new), self.quota_gone)
            handle.objects.informer(Pod).add_handler(self.pod_seen, self.pod_changed, self.pod_gone)

    def total(self) -> Amounts:
        """Allocatable of all nodes. The same object as long as no node changes."""
        table = self._table
        if self._total[0] != table.node_log.end:
            amounts = table.allocatable[:, : table.size][:, table.valid]
            low, high = (amounts & 0xFFFFFFFF).sum(axis=1).tolist(), (amounts >> 32).sum(axis=1).tolist()
            exact = np.array(low, object) + (np.array(high, object) << 32)  # the sum may exceed 64 bits
            total = {name: int(exact[column]) for name, column in table.resources.items() if column < len(exact)}
            unchanged = total == self._total[1]
            self._total = (table.node_log.end, self._total[1] if unchanged else total)
        return self._total[1]

    # Quotas

    def quota_seen(self, quota: ElasticQuota) -> None:
        """A quota was added or updated. Its name is unique in the cluster; of two objects the first one counts."""
        name, key = quota.metadata.name, quota.metadata.key
        if self._keys.setdefault(name, key) != key:
            log.once(
                f"quota:{key}", "Ignoring an ElasticQuota, its name is in use", quota=key, used_by=self._keys[name]
            )
            self.output_change = quota
            return
        info = replace(QuotaInfo.of(quota), guaranteed={})  # an output, which would rebuild all trees at every write
        self.output_change = None if self._call(UPDATE_QUOTA, self._put, info) else quota

    def _put(self, info: QuotaInfo) -> bool:
        """Apply a version of a quota; whether it counts as an update."""
        hooks, forest = self._hooks, self.forest
        if hooks is None:
            return forest.put(info)
        old = forest.info(info.name)
        if not forest.differs(info) and not hooks.is_quota_updated(old, info):
            return False
        hooks.quota_update(old, info, lambda: forest.put(info))
        return True

    def quota_gone(self, quota: ElasticQuota) -> None:
        name = quota.metadata.name
        if self._keys.get(name) == quota.metadata.key:
            del self._keys[name]
            self._call(DELETE_QUOTA, self._remove, name)
            listed = [] if self._quotas is None else self._quotas.list()
            for other in listed:
                if other.metadata.name == name and other.metadata.key != quota.metadata.key:
                    self.quota_seen(other)

    def _remove(self, name: str) -> None:
        hooks, forest = self._hooks, self.forest
        if hooks is None:
            forest.remove(name)
        else:
            hooks.quota_update(forest.info(name), None, lambda: forest.remove(name))

    def object_key(self, name: str) -> str:
        """`namespace/name` of the object of a quota; empty if it has none."""
        return self._keys.get(name, "")

    # Pods of the API server

    def pod_seen(self, pod: Pod) -> None:
        self._call(POD_ADD, self._pod_seen, pod)
        self._tell(None, pod)

    def _pod_seen(self, pod: Pod) -> None:
        if is_terminated(pod):
            self._pod_gone(pod)
            return
        meta = pod.metadata
        self._known.add(meta.uid)
        request = {} if self._ignored(pod) else self._request(pod)
        self._set(meta.uid, meta.key, meta.namespace, meta.labels, request)

    def pod_changed(self, old: Pod, new: Pod) -> None:
        self._call(POD_UPDATE, self._pod_changed, old, new)
        self._tell(old, new)

    def _pod_changed(self, old: Pod, new: Pod) -> None:
        if old.metadata.uid != new.metadata.uid:
            self._pod_gone(old)
        elif (
            not is_terminated(new)
            and old.spec == new.spec
            and old.metadata.labels == new.metadata.labels
            and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        ):
            return
        elif new.metadata.uid not in self.infos:
            self.requests_dropped = True
        self._pod_seen(new)

    def pod_gone(self, pod: Pod) -> None:
        self._tell(pod, None)
        self._call(POD_DELETE, self._pod_gone, pod)

    def _tell(self, old: Pod | None, new: Pod | None) -> None:
        """Call the hooks about a pod with a node."""
        pod = new or old
        if self._hooks is not None and pod is not None and pod.spec.node_name:
            known = self.forest.pod(pod.metadata.uid)
            quota = known.quota if known is not None else None
            if quota is not None:
                self._hooks.pod_updated(quota.name, old, new)

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._known.discard(uid)
        self._deadlines.pop(uid, None)
        if uid not in self.infos:
            self.requests_dropped = True
            self.forest.drop_pod(uid)

    def drop_expired(self) -> None:
        """Stop counting terminating pods that have passed their deadline. Called every second."""
        now = self._clock.now()
        for uid, (deadline, pod) in list(self._deadlines.items()):
            if now >= deadline:
                self._pod_seen(pod)
                self._deadlines.pop(uid, None)
                self.requests_dropped = True

    def _ignored(self, pod: Pod) -> bool:
        """Whether a terminating pod is not counted (feature gates)."""
        meta = pod.metadata
        if meta.deletion_timestamp is None:
            return False
        if self._rules.ignore_terminating_at_once:
            return True
        if not self._rules.ignore_terminating:
            return False
        grace = meta.deletion_grace_period_seconds
        deadline = meta.deletion_timestamp.timestamp() + (DEFAULT_GRACE_S if grace is None else grace)
        if self._clock.now() >= deadline:
            return True
        self._deadlines[meta.uid] = (deadline, pod)
        return False

    def _request(self, pod: Pod) -> Amounts:
        requests = from_list(pod_requests(pod))
        if self._rules.ignore_overhead:
            for name, amount in from_list(pod.spec.overhead).items():
                requests[name] = max(requests.get(name, 0) - amount, 0)
        return requests

    def _set(self, uid: str, key: str, namespace: str, labels: Mapping[str, str], request: Amounts) -> None:
        label = labels.get(names.LABEL_QUOTA_NAME, "")
        self.forest.set_pod(QuotaPod(uid, key, label, namespace, request, not quota_preemptible(labels)))

    # Pods that the table counts

    def pod_added(self, row: int, pod: PodInfo) -> None:
        if pod.subject == POD:  # the owners of a reservation count, not the room itself
            self._call(RESERVE_POD, self._reserve, pod)

    def _reserve(self, pod: PodInfo) -> None:
        self.infos[pod.uid] = pod
        if self.forest.pod(pod.uid) is None:
            self._set(pod.uid, pod.key, pod.namespace, pod.shape.labels, self.request_of(pod.shape))
        self.forest.assign(pod.uid, True)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        if pod.subject == POD:
            self._call(UNRESERVE_POD, self._unreserve, pod)

    def _unreserve(self, pod: PodInfo) -> None:
        del self.infos[pod.uid]
        self.forest.assign(pod.uid, False)
        if pod.uid not in self._known:
            self.forest.drop_pod(pod.uid)

    def _forest_call(self, operation: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`call`, with the hooks called around a reset."""
        if operation != RESET or self._hooks is None:
            return self._call(operation, function, *args, **kwargs)
        return self._hooks.around_reset(lambda: self._call(operation, function, *args, **kwargs))

    # Reading

    def request_of(self, shape: Shape) -> Amounts:
        """The request of pods of this shape."""
        request: Amounts | None = shape.memo.get(_MEMO)
        if request is None:
            request = shape.memo[_MEMO] = self._request(shape.pod)
        return request

    def quota_of(self, pod: PodInfo) -> QuotaFigures | None:
        """The quota of a pod; None: it has none."""
        if pod.subject != POD:
            return None
        return self.forest.route(pod.shape.labels.get(names.LABEL_QUOTA_NAME, ""), pod.namespace)

    def assigned(self, quota: QuotaFigures) -> Iterable[tuple[QuotaPod, PodInfo]]:
        """The pods of a quota that have nodes."""
        for uid, pod in quota.pods.items():
            info = self.infos.get(uid)
            if info is not None:
                yield pod, info
