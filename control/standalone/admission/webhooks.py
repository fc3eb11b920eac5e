"""Runs the configured admission webhooks: mutating ones in turn, validating ones side by side.

Mutating webhooks go by configuration name and their order in it; each sees what those before it changed. One
with reinvocationPolicy IfNeeded is asked a second time when the object changed after its turn. A webhook that
can't be asked is judged by its failurePolicy. `matchConditions` (CEL) are not evaluated: such a webhook is
always called. Webhook configurations themselves never go to webhooks, so that a broken one can be removed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone import errors
from control.standalone.admission.client import WebhookClient, WebhookFailure, WebhookResponse
from control.standalone.admission.matching import Match, match
from control.standalone.auth.reviews import user_info
from control.standalone.kinds import NAMESPACE
from control.standalone.patch import json_patch
from control.standalone.policyinterfaces import AdmissionAttributes
from control.standalone.store import ObjectStore

Json = dict[str, Any]

log = logging.getLogger(__name__)

GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = f"{GROUP}/mutatingwebhookconfigurations", f"{GROUP}/validatingwebhookconfigurations"
_OPTIONS = {
    "CREATE": "CreateOptions",
    "UPDATE": "UpdateOptions",
    "DELETE": "DeleteOptions",
    "CONNECT": "PodExecOptions",
}


_CREATED_BELOW = {"binding": "Binding"}
"""Subresource -> the kind of what is sent to it, where that is not the object's own."""


class Webhooks:
    """Calls what the store configures."""

    def __init__(self, store: ObjectStore, client: WebhookClient) -> None:
        self._store = store
        self._client = client

    async def mutate(self, request: AdmissionAttributes) -> None:
        """Run the mutating webhooks over `request.obj`. Raises StatusError."""
        seen: dict[int, Json | None] = {}  # position -> the object as the webhook left it
        webhooks = list(self._webhooks(MUTATING, request))
        for at, webhook in enumerate(webhooks):
            if await self._mutate_by(webhook, request):
                seen[at] = copy.deepcopy(request.obj)
        for at, webhook in enumerate(webhooks):
            if webhook.get("reinvocationPolicy") == "IfNeeded" and at in seen and seen[at] != request.obj:
                await self._mutate_by(webhook, request)

    async def validate(self, request: AdmissionAttributes) -> None:
        """Ask all validating webhooks at once; raises the first refusal in their order."""
        asked = [self._ask(webhook, request) for webhook in self._webhooks(VALIDATING, request)]
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _webhooks(self, key: str, request: AdmissionAttributes) -> Iterator[Mapping[str, Any]]:
        if request.kind.group == GROUP:
            return
        for configuration in self._store.list(key):
            yield from configuration.get("webhooks") or ()

    async def _mutate_by(self, webhook: Mapping[str, Any], request: AdmissionAttributes) -> bool:
        """True if the webhook was asked."""
        found = await self._ask(webhook, request)
        if found is None:
            return False
        answer, version = found
        if answer.patch and request.obj is not None:
            try:
                patched = json_patch.apply(_as_version(request, request.obj, version), answer.patch)
            except json_patch.JsonPatchError as error:
                raise errors.internal(f'webhook "{webhook.get("name")}": {error}') from error
            if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
                raise errors.internal(f'webhook "{webhook.get("name")}" left no object behind')
            patched["apiVersion"] = request.obj.get("apiVersion")
            request.obj = patched
        return True

    async def _ask(
        self, webhook: Mapping[str, Any], request: AdmissionAttributes
    ) -> tuple[WebhookResponse, Match] | None:
        """None: not concerned, or failed and to be ignored. Raises StatusError for a refusal."""
        namespace = self._store.get(NAMESPACE, None, request.namespace) if request.namespace else None
        version = match(webhook, request, namespace)
        if version is None:
            return None
        name = str(webhook.get("name", ""))
        if request.dry_run and webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise errors.bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            answer = await self._client.call(webhook, review_request(request, version))
        except WebhookFailure as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                log.warning("failed calling webhook, failing open name=%s error=%s", name, error)
                return None
            raise errors.internal(f'failed calling webhook "{name}": {error}') from error
        request.warnings.extend(answer.warnings)
        if not answer.allowed:
            raise denied(name, answer.status)
        return answer, version


def denied(name: str, status: Mapping[str, Any]) -> errors.StatusError:
    """The webhook's own status with Kubernetes' head in front of its message."""
    head = f'admission webhook "{name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{head}: {text}" if text else f"{head} without explanation"
    code = status.get("code")
    code = code if isinstance(code, int) and code >= 400 else 400
    return errors.StatusError(code, str(status.get("reason") or ""), message, dict(status.get("details") or {}))


def review_request(request: AdmissionAttributes, found: Match) -> Json:
    """The `request` of an AdmissionReview."""
    kind = request.kind
    name = _CREATED_BELOW.get(request.subresource, kind.kind)
    gvk = {"group": kind.group, "version": found.version, "kind": name}
    gvr = {"group": kind.group, "version": found.version, "resource": kind.plural}
    out: Json = {
        "uid": str(uuid.uuid4()),
        "kind": gvk,
        "resource": gvr,
        "requestKind": {**gvk, "version": request.version},
        "requestResource": {**gvr, "version": request.version},
        "name": request.name,
        "operation": request.operation,
        "userInfo": user_info(request.user),
        "object": _as_version(request, request.obj, found),
        "oldObject": _as_version(request, request.old, found),
        "dryRun": request.dry_run,
        "options": {"kind": _OPTIONS[request.operation], "apiVersion": "meta.k8s.io/v1", **request.options},
    }
    if request.namespace:
        out["namespace"] = request.namespace
    if request.subresource:
        out["subResource"] = out["requestSubResource"] = request.subresource
    return out


def _as_version(request: AdmissionAttributes, obj: Json | None, found: Match) -> Json | None:
    """The object in the version that the webhook asked for; versions differ in name only here."""
    return None if obj is None else {**obj, "apiVersion": request.kind.served_as(found.version)}
