"""Authentication to the API server: rotating bearer tokens, basic auth, exec plug-ins.

`headers` is called before each request and `invalidate` after a 401, so that a rotated service-account token or an
expired plug-in token fails one request and does not need a restart.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from koordlet.api.encoding.times import Time
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.kube.errors import ConfigError
from koordlet.kube.tls import load_client_cert

_REREAD_PERIOD_S = 60.0
"""client-go's value; the kubelet rotates projected tokens after 80 % of their lifetime."""
_EXPIRY_MARGIN_S = 60.0


class Credentials(Protocol):
    """Headers that authenticate a request."""

    async def headers(self) -> Mapping[str, str]: ...
    def invalidate(self) -> bool:
        """Call after a 401; returns whether the next `headers` may return other credentials."""
        ...


class Anonymous:
    """No credentials, or a client certificate, which TLS presents."""

    async def headers(self) -> Mapping[str, str]:
        return {}

    def invalidate(self) -> bool:
        return False


class Fixed:
    """A constant token, or user name and password."""

    def __init__(self, authorization: str) -> None:
        self._headers = {"Authorization": authorization}

    @classmethod
    def bearer(cls, token: str) -> Fixed:
        return cls(f"Bearer {token.strip()}")

    @classmethod
    def basic(cls, user: str, password: str) -> Fixed:
        return cls("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def invalidate(self) -> bool:
        return False


class TokenFile:
    """A bearer token in a file that is rotated; read again every minute and after a 401."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._read_at: float | None = None
        self._token = ""

    async def headers(self) -> Mapping[str, str]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= _REREAD_PERIOD_S:
            self._read(now)
        return {"Authorization": f"Bearer {self._token}"}

    def invalidate(self) -> bool:
        self._read_at = None
        return True

    def _read(self, now: float) -> None:
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token:  # the file is being rotated: keep the old token and read again in a minute
                self._read_at = now
                return
            raise ConfigError(f"cannot read token file {self._path}: {error}") from error
        if not token:
            raise ConfigError(f"token file {self._path} is empty")
        self._token = token
        self._read_at = now


class ExecPlugin:
    """client.authentication.k8s.io plug-ins, run through kubernetes.aio's provider; cached until they expire."""

    def __init__(self, spec: Mapping[str, Any], context: ssl.SSLContext | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._spec = spec
        self._context = context
        self._clock = clock
        self._lock = asyncio.Lock()
        self._headers: Mapping[str, str] | None = None
        self._expires: float | None = None

    async def headers(self) -> Mapping[str, str]:
        async with self._lock:  # concurrent requests share one run of the plug-in
            expired = self._expires is not None and self._clock.now() >= self._expires - _EXPIRY_MARGIN_S
            if self._headers is None or expired:
                self._headers = await self._run()
            return self._headers

    def invalidate(self) -> bool:
        self._headers = None
        return True

    async def _run(self) -> Mapping[str, str]:
        # Imported here because the package needs 20 MB and a third of a second, and few kubeconfigs use it.
        from kubernetes.aio.config.config_exception import ConfigException
        from kubernetes.aio.config.exec_provider import ExecProvider
        from kubernetes.aio.config.kube_config import ConfigNode

        try:
            status: dict[str, Any] = await ExecProvider(ConfigNode("exec", dict(self._spec))).run()
        except (ConfigException, OSError) as error:
            raise ConfigError(f"exec plug-in {self._spec.get('command')}: {error}") from error
        self._expires = _expiry(status.get("expirationTimestamp"))
        certificate = status.get("clientCertificateData")
        key = status.get("clientKeyData")
        if certificate and key and self._context is not None:
            load_client_cert(self._context, certificate.encode(), key.encode(), "exec plug-in")
        if token := status.get("token"):
            return {"Authorization": f"Bearer {token}"}
        if certificate and key:
            return {}
        raise ConfigError(f"exec plug-in {self._spec.get('command')} returned neither a token nor a client certificate")


def _expiry(text: str | None) -> float | None:
    if not text:
        return None
    try:
        moment: datetime = Time.parse(text)
    except ValueError as error:
        raise ConfigError(f"exec plug-in: expirationTimestamp: {error}") from error
    return moment.timestamp()
