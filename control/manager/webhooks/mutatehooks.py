"""The mutating webhooks of pods and Reservations: caches in, the pure steps, a JSON patch out (spec 04 §11, §18)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from control.manager.context import Context
from control.manager.quota import shared
from control.manager.recommender.admission import Hosting
from control.manager.webhooks.errors import MutationError
from control.manager.webhooks.lookup import Lookup
from control.manager.webhooks.objects import Json
from control.manager.webhooks.podmutating import Knowledge, NoTrees, Step, Trees, mutate_pod
from control.manager.webhooks.profiles import Matched, match
from control.manager.webhooks.reservations import mutate_reservation
from control.manager.webhookserver import jsonpatch
from control.manager.webhookserver.admission import (
    CREATE,
    AdmissionRequest,
    Allowed,
    Denied,
    Handler,
    Patched,
    Response,
)
from control.manager.webhookserver.metrics import MUTATE, WebhookMetrics
from koordlet.api.core import Namespace, Pod, PriorityClass
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.api.crs.quota import ElasticQuotaProfile
from koordlet.api.crs.scheduling import Reservation
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

_TOLD_LIMIT = 4096
"""Versions of bad profiles that are told of: beyond, somebody is playing."""


class _Profiled(Handler):
    """What both have in common: profiles, the PriorityClasses that they name, chance."""

    def __init__(self, context: Context, rng: random.Random | None = None) -> None:
        self._context = context
        self._rng = rng or random.Random()
        self._profiles = context.caches.informer(ClusterColocationProfile)
        self._classes = Lookup(context, PriorityClass)
        self._metrics = WebhookMetrics.of(context.internal)
        self._told: set[tuple[str, str, str]] = set()

    def _tell(self, matched: Matched) -> None:
        """Log and report what is wrong with profiles: once for each version of one."""
        for profile, reason in matched.problems:
            meta = profile.metadata
            key = (meta.uid, meta.resource_version, reason)
            if key not in self._told and len(self._told) < _TOLD_LIMIT:
                self._told.add(key)
                log.warning("Profile passed over", profile=meta.name, err=reason)
                self._context.events.warning(profile, "InvalidProfile", f"{reason}; the profile is passed over")

    async def _known(self, matched: Matched, **more: object) -> Knowledge:
        self._tell(matched)
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
        self._hosting = Hosting(context)
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
            before=(*self._before, *await self._hosting.steps(pod, namespace, matched.profiles)),
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
