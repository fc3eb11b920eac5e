"""Calls the configured admission webhooks: mutating ones one after another, validating ones concurrently.

Mutating webhooks are called by configuration name and their order in it; each gets the changes of the previous ones.
One with reinvocationPolicy IfNeeded is called again when the object changed after its call. The failurePolicy
decides when a call fails. `matchConditions` (CEL) are not evaluated: such a webhook is always called. Writes of
webhook configurations are not sent to webhooks, so that a broken one can be removed.
"""

from __future__ import annotations

import asyncio
import copy
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
from koordlet.app.logging import get_logger

Json = dict[str, Any]

log = get_logger(__name__)

GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = f"{GROUP}/mutatingwebhookconfigurations", f"{GROUP}/validatingwebhookconfigurations"
_OPTIONS = {
    "CREATE": "CreateOptions",
    "UPDATE": "UpdateOptions",
    "DELETE": "DeleteOptions",
    "CONNECT": "PodExecOptions",
}
_SUBRESOURCE_KINDS = {"binding": "Binding"}
"""Subresource -> kind of its objects, where it is not the main resource's kind."""


class Webhooks:
    """Calls the webhooks that are configured in the store."""

    def __init__(self, store: ObjectStore, client: WebhookClient) -> None:
        self._store = store
        self._client = client

    async def mutate(self, request: AdmissionAttributes) -> None:
        """Call the mutating webhooks with `request.obj`. Raises StatusError."""
        results: dict[int, Json | None] = {}  # index of the webhook -> the object after its call
        webhooks = list(self._webhooks(MUTATING, request))
        for index, webhook in enumerate(webhooks):
            if await self._mutate_by(webhook, request):
                results[index] = copy.deepcopy(request.obj)
        for index, webhook in enumerate(webhooks):
            reinvoked = webhook.get("reinvocationPolicy") == "IfNeeded"
            if reinvoked and index in results and results[index] != request.obj:
                await self._mutate_by(webhook, request)

    async def validate(self, request: AdmissionAttributes) -> None:
        """Call all validating webhooks concurrently; raises the first rejection in their order."""
        calls = [self._call(webhook, request) for webhook in self._webhooks(VALIDATING, request)]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _webhooks(self, key: str, request: AdmissionAttributes) -> Iterator[Mapping[str, Any]]:
        if request.kind.group == GROUP:
            return
        for configuration in self._store.list(key):
            yield from configuration.get("webhooks") or ()

    async def _mutate_by(self, webhook: Mapping[str, Any], request: AdmissionAttributes) -> bool:
        """True if the webhook was called."""
        result = await self._call(webhook, request)
        if result is None:
            return False
        response, version = result
        if response.patch and request.obj is not None:
            try:
                patched = json_patch.apply(_as_version(request, request.obj, version), response.patch)
            except json_patch.JsonPatchError as error:
                raise errors.internal(f'webhook "{webhook.get("name")}": {error}') from error
            if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
                raise errors.internal(f'webhook "{webhook.get("name")}": the result of its patch is not an object')
            patched["apiVersion"] = request.obj.get("apiVersion")
            request.obj = patched
        return True

    async def _call(
        self, webhook: Mapping[str, Any], request: AdmissionAttributes
    ) -> tuple[WebhookResponse, Match] | None:
        """None: not called, or failed and ignored. Raises StatusError for a rejection."""
        namespace = self._store.get(NAMESPACE, None, request.namespace) if request.namespace else None
        version = match(webhook, request, namespace)
        if version is None:
            return None
        name = str(webhook.get("name", ""))
        if request.dry_run and webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise errors.bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            response = await self._client.call(webhook, review_request(request, version))
        except WebhookFailure as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                log.warning("Failed calling webhook, failing open", webhook=name, err=error)
                return None
            raise errors.internal(f'failed calling webhook "{name}": {error}') from error
        request.warnings.extend(response.warnings)
        if not response.allowed:
            raise denied(name, response.status)
        return response, version


def denied(name: str, status: Mapping[str, Any]) -> errors.StatusError:
    """The webhook's status, with Kubernetes' prefix before its message."""
    head = f'admission webhook "{name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{head}: {text}" if text else f"{head} without explanation"
    code = status.get("code")
    code = code if isinstance(code, int) and code >= 400 else 400
    return errors.StatusError(code, str(status.get("reason") or ""), message, dict(status.get("details") or {}))


def review_request(request: AdmissionAttributes, version: Match) -> Json:
    """The `request` of an AdmissionReview."""
    kind = request.kind
    name = _SUBRESOURCE_KINDS.get(request.subresource, kind.kind)
    gvk = {"group": kind.group, "version": version.version, "kind": name}
    gvr = {"group": kind.group, "version": version.version, "resource": kind.plural}
    out: Json = {
        "uid": str(uuid.uuid4()),
        "kind": gvk,
        "resource": gvr,
        "requestKind": {**gvk, "version": request.version},
        "requestResource": {**gvr, "version": request.version},
        "name": request.name,
        "operation": request.operation,
        "userInfo": user_info(request.user),
        "object": _as_version(request, request.obj, version),
        "oldObject": _as_version(request, request.old, version),
        "dryRun": request.dry_run,
        "options": {"kind": _OPTIONS[request.operation], "apiVersion": "meta.k8s.io/v1", **request.options},
    }
    if request.namespace:
        out["namespace"] = request.namespace
    if request.subresource:
        out["subResource"] = out["requestSubResource"] = request.subresource
    return out


def _as_version(request: AdmissionAttributes, obj: Json | None, version: Match) -> Json | None:
    """The object in the version that the webhook expects; only apiVersion differs."""
    return None if obj is None else {**obj, "apiVersion": request.kind.served_as(version.version)}
