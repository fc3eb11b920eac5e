"""What the quotas hold beside queued jobs: the pods of the cluster, and the resources of its nodes.

Pods of an admitted job are left out: the job counts as a whole, from its admission to its end, with the larger of what
it was admitted with and what its pods request. Pods of a job that waits again, or has ended, count as others do until
they are gone.
"""

from __future__ import annotations

from control.quota.amounts import Amounts, add_to, from_list
from control.quota.figures import QuotaPod, RuntimeRules
from control.quota.forest import ForestRules, QuotaForest
from control.quota.info import QuotaInfo
from koordlet.api import names
from koordlet.api.annotations.scheduling import quota_preemptible
from koordlet.api.core import Node, Pod
from koordlet.api.core.podresources import is_terminated, pod_requests
from koordlet.api.crs.quota import ElasticQuota
from koordlet.app.gates import FeatureGates


class QueueDemand:
    """Fed with events of pods, nodes and quotas. `changed` is set by each that may matter, and reset by the reader."""

    def __init__(self, gates: FeatureGates) -> None:
        rules = ForestRules(
            RuntimeRules(guarantee=gates.enabled("ElasticQuotaGuaranteeUsage")),
            multiple_trees=gates.enabled("MultiQuotaTree"),
            default_disabled=gates.enabled("DisableDefaultQuota"),
        )
        self.forest = QuotaForest(rules, self._node_total)
        self.changed = True
        self._nodes: dict[str, Amounts] = {}
        self._total: Amounts | None = None
        self._pods: dict[str, dict[str, tuple[QuotaPod, bool]]] = {}
        """`namespace/uid` of the controller -> its pods that have not terminated, by uid; whether they have a node."""
        self._jobs: set[str] = set()
        """`namespace/uid` of jobs that count as a whole."""

    # Nodes

    def node_seen(self, node: Node) -> None:
        amounts = from_list(node.status.allocatable)
        if self._nodes.get(node.metadata.name) != amounts:
            self._nodes[node.metadata.name] = amounts
            self._total, self.changed = None, True

    def node_gone(self, node: Node) -> None:
        if self._nodes.pop(node.metadata.name, None) is not None:
            self._total, self.changed = None, True

    def _node_total(self) -> Amounts:
        if self._total is None:
            self._total = {}
            for amounts in self._nodes.values():
                add_to(self._total, amounts)
        return self._total

    # Quotas

    def quota_seen(self, quota: ElasticQuota) -> None:
        if self.forest.put(QuotaInfo.of(quota)):
            self.changed = True

    def quota_gone(self, quota: ElasticQuota) -> None:
        self.forest.remove(quota.metadata.name)
        self.changed = True

    # Pods

    def pod_seen(self, pod: Pod) -> None:
        if is_terminated(pod):
            self.pod_gone(pod)
            return
        siblings = self._pods.setdefault(_controller(pod), {})
        old, new = siblings.get(pod.metadata.uid), (_quota_pod(pod), bool(pod.spec.node_name))
        siblings[pod.metadata.uid] = new
        if _controller(pod) not in self._jobs:
            self._count(*new)
            self.changed = True
        elif old is None or (old[0].request, old[1]) != (new[0].request, new[1]):
            self.changed = True

    def pod_changed(self, old: Pod, new: Pod) -> None:
        if _controller(old) != _controller(new):
            self.pod_gone(old)
        self.pod_seen(new)

    def pod_gone(self, pod: Pod) -> None:
        siblings = self._pods.get(_controller(pod), {})
        if siblings.pop(pod.metadata.uid, None) is not None:
            self.changed = True
        if not siblings:
            self._pods.pop(_controller(pod), None)
        self.forest.drop_pod(pod.metadata.uid)

    def _count(self, pod: QuotaPod, assigned: bool) -> None:
        self.forest.set_pod(pod)
        self.forest.assign(pod.uid, assigned)

    # Jobs

    def count_as_whole(self, jobs: set[str]) -> None:
        """These are all admitted jobs (`namespace/uid`): their pods are not counted."""
        for job in jobs - self._jobs:
            for uid in self._pods.get(job, {}):
                self.forest.drop_pod(uid)
        for job in self._jobs - jobs:
            for pod, assigned in self._pods.get(job, {}).values():
                self._count(pod, assigned)
        self._jobs = jobs

    def requested_by_pods(self, job: str) -> Amounts:
        """What the pods of a job (`namespace/uid`) request together that have a node. The scheduler has admitted those:
        others, of which a user may add any number, hold nothing."""
        total: Amounts = {}
        for pod, has_node in self._pods.get(job, {}).values():
            if has_node:
                add_to(total, pod.request)
        return total


def _quota_pod(pod: Pod) -> QuotaPod:
    meta = pod.metadata
    return QuotaPod(
        meta.uid,
        meta.key,
        meta.labels.get(names.LABEL_QUOTA_NAME, ""),
        meta.namespace,
        from_list(pod_requests(pod)),
        non_preemptible=not quota_preemptible(meta.labels),
    )


def _controller(pod: Pod) -> str:
    """`namespace/uid`; without uid for a pod that has no controller."""
    uid = next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
    return f"{pod.metadata.namespace}/{uid}"
