"""Update modes Initial and Auto at admission: a new pod of a recommended workload gets the recommended requests.

Runs ahead of the profiles (spec 04 §9.3, §11.1), so that what a profile makes best effort is translated with the
recommended amounts. Left alone are pods with QoS LSR or LSE, by their own label or by a profile's, and everything
while a recommendation has too little history. Of several Recommendations for a pod the first by name counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from control.manager.caches import RECOMMENDATION_BY_NAMESPACE
from control.manager.context import Context
from control.manager.recommender.eviction import excluded
from control.manager.recommender.groups import Owner, UnsupportedTarget, target_of
from control.manager.recommender.lineage import Lineage
from control.manager.recommender.metrics import RecommenderMetrics
from control.manager.recommender.requests import give, recommended
from control.manager.recommender.settings import ANNOTATION_APPLIED, GATE, Mode, mode_of
from control.manager.recommender.status import confident
from control.manager.webhooks.objects import Json, own_annotations
from control.manager.webhooks.podmutating import Step
from koordlet.api.core import Pod
from koordlet.api.crs.analysis import Recommendation
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.qos import LSE, LSR

STEP = "Recommender"
"""The step's name in metrics."""


class Hosting:
    """Knows what to give a new pod; does nothing and watches nothing while the gate is off."""

    def __init__(self, context: Context) -> None:
        self._enabled = context.gates.enabled(GATE)
        if self._enabled:
            self._recommendations = context.caches.informer(Recommendation)
            self._lineage = Lineage(context)
            self._metrics = RecommenderMetrics.of(context.internal)

    async def steps(
        self, pod: Pod, namespace: str, profiles: Sequence[ClusterColocationProfile]
    ) -> tuple[tuple[str, Step], ...]:
        """The step for a new pod, by name; none when nothing is recommended for it."""
        if not self._enabled or excluded(pod) or any(profile.spec.qos_class in (LSR, LSE) for profile in profiles):
            return ()
        found = await self._find(pod, namespace)
        return () if found is None else ((STEP, lambda raw: self._apply(raw, found)),)

    async def _find(self, pod: Pod, namespace: str) -> Recommendation | None:
        applied = (Mode.INITIAL, Mode.AUTO)
        usable = [
            each
            for each in self._recommendations.by_index(RECOMMENDATION_BY_NAMESPACE, namespace)
            if mode_of(each) in applied and each.metadata.deletion_timestamp is None and confident(each.status)
        ]
        above: tuple[Owner, ...] | None = None
        for recommendation in sorted(usable, key=lambda each: each.metadata.name):
            try:
                target = target_of(recommendation)
            except UnsupportedTarget:
                continue  # the controller says so in the status
            if target.owner is not None and above is None:
                above = await self._lineage.fetched(namespace, pod.metadata)
            if target.wants(pod, above or ()):
                return recommendation
        return None

    def _apply(self, raw: Json, recommendation: Recommendation) -> None:
        told = recommendation.status.pod_status
        assert told is not None, "confident"
        amounts = {each.container_name: recommended(each) for each in told.container_statuses}
        give(raw, amounts)
        own_annotations(raw)[ANNOTATION_APPLIED] = recommendation.metadata.name
        self._metrics.applied.inc()
