"""Update modes Initial and Auto at admission: a new pod of a workload with a Recommendation gets its requests.

Runs before the profiles (spec 04 §9.3, §11.1), so that a profile's translation to batch resources uses the recommended
amounts. Pods with QoS LSR or LSE, by their own label or by a profile, are not changed, and nothing is changed while the
history is too short. Of several Recommendations that select a pod, the first by name counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.manager.caches import RECOMMENDATION_BY_NAMESPACE
from control.manager.context import ManagerContext
from control.manager.recommender.eviction import excluded
from control.manager.recommender.lineage import Lineage
from control.manager.recommender.metrics import RecommenderMetrics
from control.manager.recommender.requests import recommended, set_requests
from control.manager.recommender.settings import ANNOTATION_APPLIED, GATE, Mode, mode_of
from control.manager.recommender.status import confident
from control.manager.recommender.targets import UnsupportedTarget, WorkloadOwner, target_of
from control.manager.webhooks.objects import Json, own_annotations
from control.manager.webhooks.podmutating import Step
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.qos import LSE, LSR

STEP = "Recommender"
"""Name of the mutation step in metrics."""


class RecommendationAdmission:
    """Finds the recommended requests for a new pod. Does nothing, and watches nothing, while the feature gate is
    off."""

    def __init__(self, context: ManagerContext) -> None:
        self._enabled = context.gates.enabled(GATE)
        if self._enabled:
            self._recommendations = context.caches.informer(Recommendation)
            self._lineage = Lineage(context)
            self._metrics = RecommenderMetrics.of(context.internal)

    async def steps(
        self, pod: Pod, namespace: str, profiles: Sequence[ClusterColocationProfile]
    ) -> tuple[tuple[str, Step], ...]:
        """(name, mutation step) for a new pod; empty when no Recommendation selects it."""
        if not self._enabled or excluded(pod) or any(profile.spec.qos_class in (LSR, LSE) for profile in profiles):
            return ()
        recommendation = await self._find(pod, namespace)
        return () if recommendation is None else ((STEP, lambda raw: self._apply(raw, recommendation)),)

    async def _find(self, pod: Pod, namespace: str) -> Recommendation | None:
        modes = (Mode.INITIAL, Mode.AUTO)
        usable = [
            recommendation
            for recommendation in self._recommendations.by_index(RECOMMENDATION_BY_NAMESPACE, namespace)
            if mode_of(recommendation) in modes
            and recommendation.metadata.deletion_timestamp is None
            and confident(recommendation.status)
        ]
        owners: tuple[WorkloadOwner, ...] | None = None
        for recommendation in sorted(usable, key=lambda each: each.metadata.name):
            try:
                target = target_of(recommendation)
            except UnsupportedTarget:
                continue  # the controller reports it in the status
            if target.owner is not None and owners is None:
                owners = await self._lineage.fetched(namespace, pod.metadata)
            if target.selects(pod, owners or ()):
                return recommendation
        return None

    def _apply(self, raw: Json, recommendation: Recommendation) -> None:
        pod_status = recommendation.status.pod_status
        assert pod_status is not None, "a confident status has one"
        amounts = {status.container_name: recommended(status) for status in pod_status.container_statuses}
        set_requests(raw, amounts)
        own_annotations(raw)[ANNOTATION_APPLIED] = recommendation.metadata.name
        self._metrics.applied.inc()
