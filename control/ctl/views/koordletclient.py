"""HTTP client for koordlet's pages.

Pages of an HTTPS URL need a token, from the environment variable KOORDLET_TOKEN, which is never sent over plain HTTP.
KOORDLET_CA_FILE verifies the server; KOORDLET_INSECURE_TLS=true skips that, for the self-signed certificate of a
koordlet behind `kubectl port-forward`.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

import aiohttp

from control.ctl.errors import CtlError
from control.ctl.views.bounded import read_bounded
from control.ctl.views.httperrors import describe
from koordlet.api.encoding.wire import WireError, decode
from koordlet.api.pages.enforcement import Enforcement
from koordlet.api.pages.interference import PodInterferenceReport
from koordlet.api.pages.top import Top

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:9316"
TIMEOUT = aiohttp.ClientTimeout(total=10.0)
HINT = (
    "Start one with `koordctl up`, or without Kubernetes with `koordlet --standalone` (as root); "
    "if it listens elsewhere, give --koordlet-url."
)


class KoordletUnreachable(CtlError):
    """koordlet does not respond, or not with a usable response."""


async def _get(url: str, path: str, session: aiohttp.ClientSession | None) -> tuple[int, bytes]:
    address = url.rstrip("/") + path
    headers, tls = credentials(address, os.environ)
    headers["Accept"] = "application/json"
    try:
        if session is not None:
            async with session.get(
                address, headers=headers, timeout=TIMEOUT, ssl=tls, allow_redirects=False
            ) as response:
                return _allowed(url, response.status), await read_bounded(response)
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as own,
            own.get(address, headers=headers, ssl=tls, allow_redirects=False) as response,
        ):
            return _allowed(url, response.status), await read_bounded(response)
    except aiohttp.InvalidURL as error:
        raise KoordletUnreachable(f"{url!r} is not a URL", "Give --koordlet-url as http://HOST:PORT.") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = describe(error, url)
        raise KoordletUnreachable(f"koordlet at {url} does not respond: {reason}", HINT) from error


def credentials(address: str, environ: Mapping[str, str]) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Headers and TLS settings for a URL. Raises KoordletUnreachable for an unusable KOORDLET_CA_FILE."""
    if not address.lower().startswith("https:"):
        return {}, True
    token, ca_file = environ.get("KOORDLET_TOKEN", "").strip(), environ.get("KOORDLET_CA_FILE")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if environ.get("KOORDLET_INSECURE_TLS", "").lower() == "true":
        return headers, False
    try:
        return headers, ssl.create_default_context(cafile=ca_file) if ca_file else True
    except OSError as error:  # includes SSLError
        raise KoordletUnreachable(f"KOORDLET_CA_FILE={ca_file}: {error}", "Name a PEM file.") from error


def _allowed(url: str, status: int) -> int:
    """The status. Raises KoordletUnreachable if koordlet refuses the caller."""
    if status in (401, 403):
        raise KoordletUnreachable(
            f"koordlet at {url} refuses the request with HTTP {status}",
            "Set KOORDLET_TOKEN to a token of an account with the ClusterRole koordinator-view-pages.",
        )
    return status


def _decoded(kind: type[T], url: str, status: int, body: bytes, server: str = "a koordlet") -> T:
    """The page. Raises KoordletUnreachable if it is not one of `server`."""
    if status != 200:
        raise KoordletUnreachable(f"{url} responds with HTTP {status}: is it {server}?", HINT)
    try:
        return decode(body, kind, where=url)
    except WireError as error:
        raise KoordletUnreachable(f"{error}: is it a koordlet?", HINT) from error


async def fetch_top(url: str, session: aiohttp.ClientSession | None = None) -> Top:
    """`/top`; raises KoordletUnreachable."""
    status, body = await _get(url, "/top", session)
    return _decoded(Top, f"{url}/top", status, body)


async def fetch_enforcement(url: str, session: aiohttp.ClientSession) -> Enforcement | None:
    """`/enforcement`; None when koordlet only observes. Raises KoordletUnreachable."""
    status, body = await _get(url, "/enforcement", session)
    if status == 404:
        return None
    return _decoded(Enforcement, f"{url}/enforcement", status, body)


async def fetch_explanation(
    url: str, namespace: str, pod: str, session: aiohttp.ClientSession | None = None
) -> PodInterferenceReport:
    """`/interference` of one pod; raises KoordletUnreachable, or CtlError when the pod is not on that node."""
    path = f"/interference?pod={quote(f'{namespace}/{pod}', safe='')}"
    status, body = await _get(url, path, session)
    if status == 404 and b"on this node" in body:
        raise CtlError(
            f"the koordlet at {url} does not know pod {namespace}/{pod}",
            "If it is on another node, give that node's koordlet with --koordlet-url; give the namespace with -n.",
        )
    return _decoded(PodInterferenceReport, f"{url}/interference", status, body, "a koordlet of this release")


async def fetch_ready(url: str, session: aiohttp.ClientSession | None = None) -> dict[str, str | None]:
    """`/readyz`: check -> None, or why it fails. Raises KoordletUnreachable."""
    status, body = await _get(url, "/readyz", session)
    try:
        checks = json.loads(body)["checks"]
        return {str(name): None if check["ok"] else str(check["reason"]) for name, check in checks.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{url}/readyz responds with HTTP {status} without checks: is it a koordlet?"
        raise KoordletUnreachable(message, HINT) from error
