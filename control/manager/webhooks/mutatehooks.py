"""The mutating webhooks of pods and Reservations: caches in, the pure steps, a JSON patch out (spec 04 §11, §18)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from control.manager.context import Context
from control.manager.quota import shared
from control.manager.webhook import jsonpatch
from control.manager.webhook.admission import CREATE, AdmissionRequest, Allowed, Denied, Handler, Patched, Response
from control.manager.webhook.metrics import MUTATE, WebhookMetrics
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.lookup import Lookup
from control.manager.webhooks.objects import Json
from control.manager.webhooks.podmutating import Knowledge, NoTrees, Step, Trees, mutate_pod
from control.manager.webhooks.profiles import Matched, match
from control.manager.webhooks.reservations import mutate_reservation
from koordlet.api.config import ClusterColocationProfile
from koordlet.api.core import Namespace, Pod, PriorityClass
from koordlet.api.quota import ElasticQuotaProfile
from koordlet.api.scheduling import Reservation
from koordlet.api.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class _Profiled(Handler):
    """What both have in common: profiles, the PriorityClasses that they name, chance."""

    def __init__(self, context: Context, rng: random.Random | None = None) -> None:
        self._context = context
        self._rng = rng or random.Random()
        self._profiles = context.caches.informer(ClusterColocationProfile)
        self._classes = Lookup(context, PriorityClass)
        self._metrics = WebhookMetrics.of(context.internal)

    async def _known(self, matched: Matched, **more: object) -> Knowledge:
        for problem in matched.problems:
            log.warning("Profile does not match for an error", err=problem)
        found = {name: await self._classes.get(name) for name in sorted(matched.priority_classes)}
        return Knowledge(
            gates=self._context.gates.enabled,
            rand=lambda: self._rng.randrange(100),
            matched=matched,
            priority_classes={name: each for name, each in found.items() if each is not None},
            strict_parity=self._context.options.strict_parity,
            **more,  # type: ignore[arg-type]  # the members that only pods need
        )


class MutatePod(_Profiled):
    """`/mutate-pod`. `before` are steps of other packages, run on new pods ahead of the profiles."""

    path, gate = "/mutate-pod", "PodMutatingWebhook"
    resources = frozenset({("", "pods", "")})

    def __init__(
        self, context: Context, rng: random.Random | None = None, before: Sequence[tuple[str, Step]] = ()
    ) -> None:
        super().__init__(context, rng)
        self._namespaces = Lookup(context, Namespace)
        self._before = tuple(before)
        self._trees: Trees = NoTrees()
        self._quota_profiles = None
        if context.gates.enabled("MultiQuotaTree"):
            self._trees = shared(context)
            self._quota_profiles = context.caches.informer(ElasticQuotaProfile)

    async def handle(self, request: AdmissionRequest) -> Response:
        if request.operation != CREATE:
            return Allowed()  # updates are registered for pods labelled mutating-update, and nothing does any yet
        pod = request.decode(Pod)
        raw: Json = msgspec.json.decode(bytes(request.object))
        namespace = pod.metadata.namespace or request.namespace
        own = await self._namespaces.get(namespace)
        matched = match(self._profiles.list(), pod.metadata.labels, own.metadata.labels if own else None)
        known = await self._known(
            matched,
            trees=self._trees,
            quota_profiles=self._quota_profiles.list() if self._quota_profiles else (),
            before=self._before,
        )
        try:
            after = mutate_pod(
                raw, namespace, known, lambda name: self._metrics.plugin(MUTATE, "pod", request.operation, name)
            )
        except (MutationError, WireError) as error:
            return Denied(str(error), code=500)
        return _answer(raw, after)


class MutateReservation(_Profiled):
    """`/mutate-reservation`."""

    path, gate = "/mutate-reservation", "ReservationMutatingWebhook"
    resources = frozenset({("scheduling.koordinator.sh", "reservations", "")})

    async def handle(self, request: AdmissionRequest) -> Response:
        if request.operation != CREATE:
            return Allowed()
        reservation = request.decode(Reservation)
        raw: Json = msgspec.json.decode(bytes(request.object))
        matched = match(self._profiles.list(), reservation.metadata.labels, None, namespaced=False)
        known = await self._known(matched)
        try:
            with self._metrics.plugin(MUTATE, "reservation", request.operation, "ClusterReservation"):
                after = mutate_reservation(raw, known)
        except (MutationError, WireError) as error:
            return Denied(str(error), code=500)
        return _answer(raw, after)


def _answer(before: Json, after: Json) -> Response:
    operations = jsonpatch.diff(before, after)
    return Patched(tuple(operations)) if operations else Allowed()
