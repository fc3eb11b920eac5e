"""Resolves a webhook's address: its URL, or an endpoint of its Service.

This server has no service network. A service is resolved to the address of one of its ready endpoints
(Endpoints, then EndpointSlices), or by a configured map `namespace/name -> host:port`. The certificate is
always verified for the service's DNS name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from control.standalone.store import ObjectStore

Json = Mapping[str, Any]


class UnresolvedWebhook(LookupError):
    """The webhook has no address; the message has the reason."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The URL for a review, the server name in the certificate, and the CA bundle (PEM)."""

    url: str
    server_name: str
    ca_bundle: str
    shown: str
    """The URL in error messages."""


class WebhookEndpoints:
    """Resolves clientConfigs. `hosts` has precedence over the endpoints in the store."""

    def __init__(self, store: ObjectStore, hosts: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._hosts = dict(hosts or {})

    def resolve(self, config: Json) -> WebhookTarget:
        """Raises UnresolvedWebhook."""
        bundle = _bundle(config.get("caBundle"))
        if url := config.get("url"):
            return WebhookTarget(str(url), urlsplit(str(url)).hostname or "", bundle, str(url))
        service = config.get("service")
        if not service:
            raise UnresolvedWebhook("the webhook has neither url nor service")
        namespace, name, port = str(service["namespace"]), str(service["name"]), int(service.get("port") or 443)
        path = "/" + str(service.get("path") or "").lstrip("/")
        server_name = f"{name}.{namespace}.svc"
        address = self._hosts.get(f"{namespace}/{name}") or self._address(namespace, name, port)
        return WebhookTarget(f"https://{address}{path}", server_name, bundle, f"https://{server_name}:{port}{path}")

    def _address(self, namespace: str, name: str, port: int) -> str:
        service = self._store.get("/services", namespace, name)
        if service is None:
            raise UnresolvedWebhook(f'service "{name}" not found')
        ports = (service.get("spec") or {}).get("ports") or ()
        service_port = next((each for each in ports if each.get("port") == port), None)
        if service_port is None:
            raise UnresolvedWebhook(f'no service port {port} found for service "{name}"')
        for address, number in self._candidates(namespace, name, str(service_port.get("name") or "")):
            host = f"[{address}]" if ":" in address else address
            return f"{host}:{number or service_port.get('targetPort') or port}"
        raise UnresolvedWebhook(f'no endpoints available for service "{name}"')

    def _candidates(self, namespace: str, name: str, port_name: str) -> Iterator[tuple[str, int | None]]:
        endpoints = self._store.get("/endpoints", namespace, name)
        for subset in (endpoints or {}).get("subsets") or ():
            for each in subset.get("addresses") or ():
                yield str(each["ip"]), _port(subset.get("ports"), port_name)
        for piece in self._store.list("discovery.k8s.io/endpointslices", namespace):
            if (piece["metadata"].get("labels") or {}).get("kubernetes.io/service-name") != name:
                continue
            for endpoint in piece.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready", True):
                    for address in endpoint.get("addresses") or ():
                        yield str(address), _port(piece.get("ports"), port_name)


def _port(ports: Any, name: str) -> int | None:
    port = next((each for each in ports or () if (each.get("name") or "") == name), None)
    return int(port["port"]) if port and port.get("port") else None


def _bundle(text: Any) -> str:
    if not text:
        return ""
    try:
        return base64.b64decode(str(text), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise UnresolvedWebhook("clientConfig.caBundle is not base64 of PEM certificates") from error
