"""The two webhook configurations as they should be (spec 04 §1.7). Pure: objects in, `webhooks` out.

The annotation `template` keeps the list as it was installed, so that a webhook whose gate is off is taken out and
comes back with the gate.
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
from koordlet.api.registry import Resource

TEMPLATE = "template"
POD_PATHS = ("/mutate-pod", "/validate-pod")
_GROUP = ("admissionregistration.k8s.io", "v1")

Webhook = dict[str, Any]


class WebhookConfiguration(Struct):
    """Either of the two kinds; the webhooks stay plain JSON, so that nothing in them is lost."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    webhooks: list[Webhook] = msgspec.field(default_factory=list)


MUTATING = Resource(
    *_GROUP, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False, WebhookConfiguration,
    status_subresource=False,
)  # fmt: skip
VALIDATING = Resource(
    *_GROUP, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False, WebhookConfiguration,
    status_subresource=False,
)  # fmt: skip


class BadTemplate(ValueError):
    """The annotation is no list of webhooks."""


@dataclass(frozen=True)
class Target:
    """Where our webhooks are served and how to trust them. `bundle` is PEM, `port` the one really listened on."""

    env: WebhookEnv
    port: int
    paths: Collection[str]
    bundle: bytes


def wanted(configuration: WebhookConfiguration, target: Target) -> tuple[list[Webhook], str]:
    """(webhooks, template) as they should be. Raises BadTemplate."""
    text = configuration.metadata.annotations.get(TEMPLATE, "")
    template = _parse(text) if text else configuration.webhooks
    if not text:
        text = json.dumps(template, separators=(",", ":"))
    built = (_built(entry, target) for entry in template)
    return [entry for entry in built if entry is not None], text


def patch(configuration: WebhookConfiguration, target: Target) -> dict[str, Any] | None:
    """The merge patch that makes a configuration as it should be; None when it is. Raises BadTemplate."""
    webhooks, template = wanted(configuration, target)
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
        found = json.loads(text)
    except ValueError as error:
        raise BadTemplate(f"annotation {TEMPLATE} is not JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise BadTemplate(f"annotation {TEMPLATE} is not a list of webhooks")
    return found


def _built(entry: Mapping[str, Any], target: Target) -> Webhook | None:
    """The entry for our server; None when nobody serves its path."""
    env = target.env
    given = entry.get("clientConfig") or {}
    path = _path(given)
    if path not in target.paths:
        return None
    config: dict[str, Any] = {"caBundle": base64.b64encode(target.bundle).decode()}
    if env.host:
        config["url"] = f"https://{env.url_host}:{target.port}{path}"
    elif given.get("service") is not None:
        config["service"] = {**given["service"], "namespace": env.namespace, "name": env.service_name}
    else:
        config["url"] = given.get("url", "")
    result = {**entry, "clientConfig": config}
    if env.pods_failure_policy and path in POD_PATHS:
        result["failurePolicy"] = env.pods_failure_policy
    return result


def _path(given: Mapping[str, Any]) -> str:
    service = given.get("service")
    if isinstance(service, Mapping):
        return str(service.get("path") or "")
    return urlsplit(str(given.get("url") or "")).path
