"""The desired state of the two webhook configurations (spec 04 §1.7). Pure.

The annotation `template` stores the installed list of webhooks, so that a webhook whose feature gate is off can be
removed and added again later.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from control.manager.options import WebhookEnv
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta
from koordlet.api.registry import ApiResource

TEMPLATE = "template"
POD_PATHS = ("/mutate-pod", "/validate-pod")
_GROUP = ("admissionregistration.k8s.io", "v1")

Webhook = dict[str, Any]


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


class BadTemplate(ValueError):
    """The annotation is not a list of webhooks."""


@dataclass(frozen=True)
class ConfigurationTarget:
    """The server that the webhooks call. `bundle` is its CA as PEM, `port` the port it listens on."""

    env: WebhookEnv
    port: int
    paths: Collection[str]
    bundle: bytes


def desired(configuration: WebhookConfiguration, target: ConfigurationTarget) -> tuple[list[Webhook], str]:
    """The desired (webhooks, template). Raises BadTemplate."""
    text = configuration.metadata.annotations.get(TEMPLATE, "")
    template = _parse(text) if text else configuration.webhooks
    if not text:
        text = json.dumps(template, separators=(",", ":"))
    webhooks = (_webhook(entry, target) for entry in template)
    return [webhook for webhook in webhooks if webhook is not None], text


def patch(configuration: WebhookConfiguration, target: ConfigurationTarget) -> dict[str, Any] | None:
    """The merge patch to the desired state; None when nothing differs. Raises BadTemplate."""
    webhooks, template = desired(configuration, target)
    if webhooks == configuration.webhooks and configuration.metadata.annotations.get(TEMPLATE) == template:
        return None
    return {
        "metadata": {
            "resourceVersion": configuration.metadata.resource_version,
            "annotations": {TEMPLATE: template},
        },
        "webhooks": webhooks,
    }


def _parse(text: str) -> list[Webhook]:
    try:
        webhooks = json.loads(text)
    except ValueError as error:
        raise BadTemplate(f"annotation {TEMPLATE} is not JSON: {error}") from error
    if not isinstance(webhooks, list) or not all(isinstance(entry, dict) for entry in webhooks):
        raise BadTemplate(f"annotation {TEMPLATE} is not a list of webhooks")
    return webhooks


def _webhook(entry: Mapping[str, Any], target: ConfigurationTarget) -> Webhook | None:
    """The entry with the client configuration of the server; None when no handler serves its path."""
    env = target.env
    old_config = entry.get("clientConfig") or {}
    path = _path(old_config)
    if path not in target.paths:
        return None
    config: dict[str, Any] = {"caBundle": base64.b64encode(target.bundle).decode()}
    if env.host:
        config["url"] = f"https://{env.url_host}:{target.port}{path}"
    elif old_config.get("service") is not None:
        config["service"] = {**old_config["service"], "namespace": env.namespace, "name": env.service_name}
    else:
        config["url"] = old_config.get("url", "")
    result = {**entry, "clientConfig": config}
    if env.pods_failure_policy and path in POD_PATHS:
        result["failurePolicy"] = env.pods_failure_policy
    return result


def _path(client_config: Mapping[str, Any]) -> str:
    service = client_config.get("service")
    if isinstance(service, Mapping):
        return str(service.get("path") or "")
    return urlsplit(str(client_config.get("url") or "")).path
