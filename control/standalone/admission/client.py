"""Calls admission webhooks over HTTPS, with one AdmissionReview as request and response.

Certificates are verified with the webhook's caBundle (without one, with the system's CAs). TLS contexts are
cached by bundle, connections by the session. A call is limited by the webhook's timeoutSeconds, a response to
MAX_RESPONSE_BYTES. Every failure is a `WebhookFailure`, to which the caller applies the failure policy.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from control.standalone.admission.endpoints import UnresolvedWebhook, WebhookEndpoints, WebhookTarget

Json = dict[str, Any]

DEFAULT_TIMEOUT_SECONDS = 10.0
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


class WebhookFailure(Exception):
    """The webhook could not be called, or its response is invalid."""


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """A validated AdmissionResponse."""

    allowed: bool
    patch: list[Json] | None = None
    status: Json = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class WebhookClient:
    """`await client.call(webhook, request)`; `await client.close()` at the end."""

    def __init__(self, endpoints: WebhookEndpoints) -> None:
        self._endpoints = endpoints
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def call(self, webhook: Mapping[str, Any], request: Json) -> WebhookResponse:
        """Raises WebhookFailure."""
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        seconds = float(webhook.get("timeoutSeconds") or DEFAULT_TIMEOUT_SECONDS)
        try:
            target = self._endpoints.resolve(webhook.get("clientConfig") or {})
        except UnresolvedWebhook as error:
            raise WebhookFailure(str(error)) from error
        try:
            async with asyncio.timeout(seconds):
                body = await self._post(target, review, seconds)
        except TimeoutError as error:
            shown = f"{target.shown}?timeout={seconds:g}s"
            raise WebhookFailure(f'failed to call webhook: Post "{shown}": context deadline exceeded') from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            shown = f"{target.shown}?timeout={seconds:g}s"
            raise WebhookFailure(f'failed to call webhook: Post "{shown}": {error}') from error
        return _parse_response(body, str(request["uid"]))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, target: WebhookTarget, review: Json, seconds: float) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        async with self._session.post(
            target.url,
            params={"timeout": f"{seconds:g}s"},
            data=json.dumps(review).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            ssl=self._context(target.ca_bundle),
            server_hostname=target.server_name or None,
            allow_redirects=False,
        ) as response:
            body = await response.content.read(MAX_RESPONSE_BYTES + 1)
            while len(body) <= MAX_RESPONSE_BYTES and not response.content.at_eof():
                body += await response.content.read(MAX_RESPONSE_BYTES + 1 - len(body))
            if len(body) > MAX_RESPONSE_BYTES:
                raise WebhookFailure("failed to call webhook: the response is too large")
            if response.status != 200:
                raise WebhookFailure(f"failed to call webhook: the server responded with status {response.status}")
            return body

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            try:
                context = ssl.create_default_context(cadata=bundle or None)
            except ssl.SSLError as error:
                raise WebhookFailure(f"unable to load root certificates: {error}") from error
            self._contexts[bundle] = context
        return context


def _parse_response(body: bytes, uid: str) -> WebhookResponse:
    try:
        review = json.loads(body)
    except ValueError as error:
        raise WebhookFailure("failed to call webhook: the response is not JSON") from error
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise WebhookFailure("webhook response was absent")
    if review.get("apiVersion") != "admission.k8s.io/v1" or review.get("kind") != "AdmissionReview":
        actual = f"{review.get('apiVersion')}, Kind={review.get('kind')}"
        raise WebhookFailure(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {actual}")
    if response.get("uid") != uid:
        raise WebhookFailure(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    return WebhookResponse(
        allowed=response.get("allowed") is True,
        patch=_patch(response),
        status=dict(response.get("status") or {}),
        warnings=tuple(str(each) for each in response.get("warnings") or ()),
    )


def _patch(response: Mapping[str, Any]) -> list[Json] | None:
    encoded = response.get("patch")
    if not encoded:
        return None
    if response.get("patchType") != "JSONPatch":
        raise WebhookFailure('webhook returned response.patch but not response.patchType="JSONPatch"')
    try:
        patch = json.loads(base64.b64decode(str(encoded), validate=True))
    except (ValueError, binascii.Error) as error:
        raise WebhookFailure("webhook returned a response.patch that is not base64 of JSON") from error
    if not isinstance(patch, list):
        raise WebhookFailure("webhook returned a response.patch that is not a JSON patch")
    return patch
