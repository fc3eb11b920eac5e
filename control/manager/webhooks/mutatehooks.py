"""The mutating webhooks of pods and Reservations (spec 04 §11, §18): read the caches, call the pure mutation steps."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from control.manager.context import ManagerContext
from control.manager.quota import shared
from control.manager.recommender.admission import RecommendationAdmission
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.lookup import Lookup
from control.manager.webhooks.objects import Json
from control.manager.webhooks.podmutating import MutationInputs, NoTrees, Trees, mutate_pod
from control.manager.webhooks.profiles import Matched, match
from control.manager.webhooks.reservations import mutate_reservation
from control.manager.webhookserver.admission import (
    CREATE,
    AllowResponse,
    DenyResponse,
    Response,
    WebhookHandler,
    WebhookRequest,
    patch_response,
)
from control.manager.webhookserver.metrics import MUTATE, WebhookMetrics
from koordlet.api.core import Namespace, Pod, PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.crs.scheduling import Reservation
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

_MAX_REPORTED = 4096
"""Invalid profile versions that are reported; bounds memory when profiles are changed in a loop."""


class _ProfileHandler(WebhookHandler):
    """Common parts of both webhooks: profiles, the PriorityClasses that they name, random numbers."""

    def __init__(self, context: ManagerContext, rng: random.Random | None = None) -> None:
        self._context = context
        self._rng = rng or random.Random()
        self._profiles = context.caches.informer(ClusterColocationProfile)
        self._classes = Lookup(context, PriorityClass)
        self._metrics = WebhookMetrics.of(context.internal)
        self._reported: set[tuple[str, str, str]] = set()

    def _report(self, matched: Matched) -> None:
        """Log the problems of profiles and send Events, once per version of a profile."""
        for profile, reason in matched.problems:
            meta = profile.metadata
            key = (meta.uid, meta.resource_version, reason)
            if key not in self._reported and len(self._reported) < _MAX_REPORTED:
                self._reported.add(key)
                log.warning("Ignoring a profile", profile=meta.name, err=reason)
                self._context.events.warning(profile, "InvalidProfile", f"{reason}; the profile is ignored")

    async def _inputs(self, matched: Matched) -> MutationInputs:
        self._report(matched)
        classes = {name: await self._classes.get(name) for name in sorted(matched.priority_classes)}
        return MutationInputs(
            gates=self._context.gates.enabled,
            rand=lambda: self._rng.randrange(100),
            matched=matched,
            priority_classes={name: known for name, known in classes.items() if known is not None},
            strict_parity=self._context.options.strict_parity,
        )


class MutatePod(_ProfileHandler):
    """`/mutate-pod`."""

    path, gate = "/mutate-pod", "PodMutatingWebhook"
    resources = frozenset({("", "pods", "")})

    def __init__(self, context: ManagerContext, rng: random.Random | None = None) -> None:
        super().__init__(context, rng)
        self._namespaces = Lookup(context, Namespace)
        self._recommendations = RecommendationAdmission(context)
        self._trees: Trees = NoTrees()
        self._quota_profiles = None
        if context.gates.enabled("MultiQuotaTree"):
            self._trees = shared(context)
            self._quota_profiles = context.caches.informer(ElasticQuotaProfile)

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation != CREATE:
            return (
                AllowResponse()
            )  # UPDATE is registered for pods labelled mutating-update, but no mutation applies to it
        pod = request.decode(Pod)
        raw: Json = msgspec.json.decode(bytes(request.object))
        namespace = pod.metadata.namespace or request.namespace
        space = await self._namespaces.get(namespace)
        matched = match(self._profiles.list(), pod.metadata.labels, space.metadata.labels if space else None)
        inputs = replace(
            await self._inputs(matched),
            trees=self._trees,
            quota_profiles=self._quota_profiles.list() if self._quota_profiles else (),
            before=await self._recommendations.steps(pod, namespace, matched.profiles),
        )
        try:
            after = mutate_pod(
                raw, namespace, inputs, lambda name: self._metrics.plugin(MUTATE, "pod", request.operation, name)
            )
        except (MutationError, WireError) as error:
            return DenyResponse(str(error), code=500)
        return patch_response(raw, after)


class MutateReservation(_ProfileHandler):
    """`/mutate-reservation`."""

    path, gate = "/mutate-reservation", "ReservationMutatingWebhook"
    resources = frozenset({("scheduling.koordinator.sh", "reservations", "")})

    async def handle(self, request: WebhookRequest) -> Response:
        if request.operation != CREATE:
            return AllowResponse()
        reservation = request.decode(Reservation)
        raw: Json = msgspec.json.decode(bytes(request.object))
        matched = match(self._profiles.list(), reservation.metadata.labels, None, namespaced=False)
        inputs = await self._inputs(matched)
        try:
            with self._metrics.plugin(MUTATE, "reservation", request.operation, "ClusterReservation"):
                after = mutate_reservation(raw, inputs)
        except (MutationError, WireError) as error:
            return DenyResponse(str(error), code=500)
        return patch_response(raw, after)
