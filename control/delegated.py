"""Delegated authentication and authorization for HTTPS pages, as on the secure port of Kubernetes components.

A caller is authenticated by client certificate or TokenReview and authorized for the path by SubjectAccessReview.
Results are cached for some seconds. A server without certificate files uses a self-signed certificate. This module is
independent of any binary and its flags.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, KubeError

log = get_logger(__name__)

ANONYMOUS: Final = "system:anonymous"
MASTERS: Final = "system:masters"
PUBLIC: Final = ("/healthz", "/readyz", "/livez")
"""Paths that need no authorization, as by default in kube-scheduler."""
TLS_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
_CACHE_ENTRIES: Final = 4096
_VERBS: Final = {"GET": "get", "HEAD": "head", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}
_V = TypeVar("_V")


@dataclass(frozen=True)
class AuthenticatedUser:
    """The caller."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS_USER: Final = AuthenticatedUser(ANONYMOUS, ("system:unauthenticated",))


class DelegatedAuth:
    """Authenticates and authorizes requests. `client` must be allowed to create TokenReviews and
    SubjectAccessReviews."""

    def __init__(
        self,
        client: Client,
        *,
        public: Iterable[str] = PUBLIC,
        token_seconds: float = 10.0,
        allowed_seconds: float = 10.0,
        denied_seconds: float = 10.0,
    ) -> None:
        """`public`: paths that need no authorization; a trailing `*` matches any suffix."""
        self._client = client
        self._public = tuple(public)
        self._token_seconds = token_seconds
        self._decision_seconds = {True: allowed_seconds, False: denied_seconds}
        self._users: _TTLCache[AuthenticatedUser | None] = _TTLCache(client.clock)
        self._decisions: _TTLCache[bool] = _TTLCache(client.clock)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """401 for an invalid token, 403 without permission, 503 while the API server cannot be called."""
        try:
            user = await self._caller(request)
            if user is None:
                return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
            verb = _VERBS.get(request.method, request.method.lower())
            if not await self._is_allowed(user, verb, request.path):
                text = f'forbidden: User "{user.name}" cannot {verb} path "{request.path}"\n'
                return web.Response(status=403, text=text)
        except KubeError as error:
            log.warning("Cannot authorize a request", path=request.path, err=error)
            return web.Response(status=503, text="cannot call the API server to authorize the request\n")
        return await handler(request)

    async def _caller(self, request: web.Request) -> AuthenticatedUser | None:
        """The user; ANONYMOUS_USER without credentials; None with invalid credentials."""
        user = certified(request.transport.get_extra_info("peercert")) if request.transport is not None else None
        if user is not None:
            return user
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS_USER
        return await self._of_token(token.strip())

    async def _of_token(self, token: str) -> AuthenticatedUser | None:
        key = hashlib.sha256(token.encode()).hexdigest()
        cached = self._users.get(key)
        if cached is not None:
            return cached[0]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = await self._post("/apis/authentication.k8s.io/v1/tokenreviews", body)
        user = _user(status.get("user") or {}) if status.get("authenticated") else None
        self._users.put(key, user, self._token_seconds)
        return user

    async def _is_allowed(self, user: AuthenticatedUser, verb: str, path: str) -> bool:
        if MASTERS in user.groups or any(_matches(pattern, path) for pattern in self._public):
            return True
        key = json.dumps((user.name, user.groups, user.uid, user.extra, verb, path))
        cached = self._decisions.get(key)
        if cached is not None:
            return cached[0]
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = await self._post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        allowed = bool(status.get("allowed"))
        self._decisions.put(key, allowed, self._decision_seconds[allowed])
        return allowed

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        review = json.loads(await self._client.raw("POST", path, body=body))
        return dict(review.get("status") or {})


class _TTLCache(Generic[_V]):
    """Values that expire; at most _CACHE_ENTRIES, the least recently written is dropped first."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._entries: OrderedDict[str, tuple[float, _V]] = OrderedDict()

    def get(self, key: str) -> tuple[_V] | None:
        """The value as a 1-tuple, because it may be None."""
        entry = self._entries.get(key)
        return (entry[1],) if entry is not None and self._now() < entry[0] else None

    def put(self, key: str, value: _V, seconds: float) -> None:
        self._entries[key] = (self._now() + seconds, value)
        self._entries.move_to_end(key)
        if len(self._entries) > _CACHE_ENTRIES:
            self._entries.popitem(last=False)


def certified(certificate: Mapping[str, Any] | None) -> AuthenticatedUser | None:
    """The user of a client certificate that TLS has verified: common name, and organizations as groups."""
    parts = [pair for names in (certificate or {}).get("subject", ()) for pair in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = tuple(value for key, value in parts if key == "organizationName")
    return AuthenticatedUser(name, (*groups, "system:authenticated")) if name else None


def _user(info: Mapping[str, Any]) -> AuthenticatedUser:
    extra = tuple(sorted((str(key), tuple(map(str, values))) for key, values in (info.get("extra") or {}).items()))
    groups = tuple(map(str, info.get("groups") or ()))
    return AuthenticatedUser(str(info.get("username", "")), groups, str(info.get("uid", "")), extra)


def _matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def server_context(
    cert: Path | None = None, key: Path | None = None, client_ca: Path | None = None, minimum: str = ""
) -> ssl.SSLContext:
    """The TLS context of a server; without `cert` it uses a self-signed certificate, which clients cannot verify.

    Raises OSError, ssl.SSLError for unusable files, ValueError for an unknown minimum version.
    """
    if minimum not in TLS_VERSIONS:
        raise ValueError(f"unknown TLS version {minimum!r}: want {' or '.join(filter(None, TLS_VERSIONS))}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = TLS_VERSIONS[minimum]
    if cert is not None:
        context.load_cert_chain(cert, key)
    else:
        _load(context, self_signed((socket.gethostname(), "localhost", "127.0.0.1")))
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key and certificate from memory: the `ssl` module accepts only file names."""
    descriptor = os.memfd_create("self-signed")
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def self_signed(names: Iterable[str]) -> bytes:
    """A key and a certificate for these names and addresses, valid for one year, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    unique = list(dict.fromkeys(names))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, unique[0][:64])])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in unique]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + cert.public_bytes(serialization.Encoding.PEM)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
