"""The desired state of the two webhook configurations (spec 04 §1.7). Pure.

The list is `registrations`, without the webhooks whose feature gate is off. The annotation `template`, in which
Koordinator's manager stores the installed list, is removed: it would have precedence over newer lists.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from control.manager.options import WebhookEnv
from control.manager.webhookserver import registrations
from control.manager.webhookserver.registrations import MATCH_CONDITIONS, Webhook
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta
from koordlet.api.registry import ApiResource

TEMPLATE = "template"
_GROUP = ("admissionregistration.k8s.io", "v1")


class WebhookConfiguration(Struct):
    """Either of the two kinds; the webhooks are plain JSON, so that unknown fields are preserved."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    webhooks: list[Webhook] = msgspec.field(default_factory=list)


MUTATING = ApiResource(
    *_GROUP,
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    False,
    WebhookConfiguration,
    status_subresource=False,
)
VALIDATING = ApiResource(
    *_GROUP,
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    False,
    WebhookConfiguration,
    status_subresource=False,
)
ENTRIES = {MUTATING.kind: registrations.mutating, VALIDATING.kind: registrations.validating}
"""Kind -> function from environment to the webhooks."""


@dataclass(frozen=True)
class ConfigurationTarget:
    """The server that the webhooks call. `bundle` is its CA as PEM, `port` the port it listens on."""

    env: WebhookEnv
    port: int
    paths: Collection[str]
    bundle: bytes


def desired(kind: str, target: ConfigurationTarget) -> list[Webhook]:
    """The webhooks of a kind whose paths the server handles, with its address and CA."""
    return [
        {**entry, "clientConfig": _client_config(entry["clientConfig"]["service"], target)}
        for entry in ENTRIES[kind](target.env)
        if entry["clientConfig"]["service"]["path"] in target.paths
    ]


def patch(kind: str, configuration: WebhookConfiguration, target: ConfigurationTarget) -> dict[str, Any] | None:
    """The merge patch to the desired state; None when nothing differs."""
    webhooks = desired(kind, target)
    if _same(configuration.webhooks, webhooks) and TEMPLATE not in configuration.metadata.annotations:
        return None
    return {
        "metadata": {
            "resourceVersion": configuration.metadata.resource_version,
            "annotations": {TEMPLATE: None},
        },
        "webhooks": webhooks,
    }


def bundle_patch(configuration: WebhookConfiguration, target: ConfigurationTarget) -> dict[str, Any] | None:
    """The merge patch that only replaces the CA in the installed webhooks; None when nothing differs."""
    bundle = base64.b64encode(target.bundle).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook.get("clientConfig", {}), "caBundle": bundle}}
        for webhook in configuration.webhooks
    ]
    if webhooks == configuration.webhooks:
        return None
    return {"metadata": {"resourceVersion": configuration.metadata.resource_version}, "webhooks": webhooks}


def _same(installed: list[Webhook], desired_webhooks: list[Webhook]) -> bool:
    """Equality, except that an API server may not know `matchConditions`."""
    if len(installed) != len(desired_webhooks):
        return False
    return all(
        actual == other or (MATCH_CONDITIONS not in actual and actual == _without(other, MATCH_CONDITIONS))
        for actual, other in zip(installed, desired_webhooks, strict=True)
    )


def _without(webhook: Webhook, field: str) -> Webhook:
    return {name: value for name, value in webhook.items() if name != field}


def _client_config(service: Webhook, target: ConfigurationTarget) -> Webhook:
    bundle = base64.b64encode(target.bundle).decode()
    if target.env.host:
        return {"url": f"https://{target.env.url_host}:{target.port}{service['path']}", "caBundle": bundle}
    return {"service": service, "caBundle": bundle}
