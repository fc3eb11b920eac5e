"""Serving over TLS to callers whom the API server knows, as Kubernetes components do on their secure port.

Who calls is said by a client certificate or looked up by TokenReview; whether they may is asked by SubjectAccessReview
for the path. Answers are remembered for some seconds. Without a certificate of its own a server makes one for itself.
No binary is known here; flags are the caller's.
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
"""Paths that everybody may ask, as kube-scheduler's default."""
TLS_VERSIONS: Final = {"": ssl.TLSVersion.TLSv1_2, "VersionTLS12": ssl.TLSVersion.TLSv1_2,
                       "VersionTLS13": ssl.TLSVersion.TLSv1_3}  # fmt: skip
_REMEMBERED: Final = 4096
_VERBS: Final = {"GET": "get", "HEAD": "head", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}
_V = TypeVar("_V")


@dataclass(frozen=True)
class User:
    """Who calls."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


NOBODY: Final = User(ANONYMOUS, ("system:unauthenticated",))


class Gate:
    """Decides who is let in. `client` may create TokenReviews and SubjectAccessReviews."""

    def __init__(
        self,
        client: Client,
        *,
        public: Iterable[str] = PUBLIC,
        token_seconds: float = 10.0,
        allowed_seconds: float = 10.0,
        denied_seconds: float = 10.0,
    ) -> None:
        """`public`: paths that need no right; a trailing `*` stands for anything."""
        self._client = client
        self._public = tuple(public)
        self._token_seconds = token_seconds
        self._verdict_seconds = {True: allowed_seconds, False: denied_seconds}
        self._users: _Remembered[User | None] = _Remembered(client.clock)
        self._verdicts: _Remembered[bool] = _Remembered(client.clock)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """401 for a token that nobody knows, 403 without the right, 503 while the API server can't be asked."""
        try:
            user = await self._caller(request)
            if user is None:
                return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
            verb = _VERBS.get(request.method, request.method.lower())
            if not await self._may(user, verb, request.path):
                text = f'forbidden: User "{user.name}" cannot {verb} path "{request.path}"\n'
                return web.Response(status=403, text=text)
        except KubeError as error:
            log.warning("Cannot ask who may call", path=request.path, err=error)
            return web.Response(status=503, text="the API server can't be asked who may call\n")
        return await handler(request)

    async def _caller(self, request: web.Request) -> User | None:
        """The user; nobody without credentials; None with credentials that are not good."""
        found = certified(request.transport.get_extra_info("peercert")) if request.transport is not None else None
        if found is not None:
            return found
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return NOBODY
        return await self._of_token(token.strip())

    async def _of_token(self, token: str) -> User | None:
        key = hashlib.sha256(token.encode()).hexdigest()
        known = self._users.get(key)
        if known is not None:
            return known[0]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = await self._post("/apis/authentication.k8s.io/v1/tokenreviews", body)
        user = _user(status.get("user") or {}) if status.get("authenticated") else None
        self._users.put(key, user, self._token_seconds)
        return user

    async def _may(self, user: User, verb: str, path: str) -> bool:
        if MASTERS in user.groups or any(_matches(pattern, path) for pattern in self._public):
            return True
        key = json.dumps((user.name, user.groups, user.uid, user.extra, verb, path))
        known = self._verdicts.get(key)
        if known is not None:
            return known[0]
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
        self._verdicts.put(key, allowed, self._verdict_seconds[allowed])
        return allowed

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found = json.loads(await self._client.raw("POST", path, body=body))
        return dict(found.get("status") or {})


class _Remembered(Generic[_V]):
    """Answers that are good for some seconds."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._answers: OrderedDict[str, tuple[float, _V]] = OrderedDict()

    def get(self, key: str) -> tuple[_V] | None:
        found = self._answers.get(key)
        return (found[1],) if found is not None and self._now() < found[0] else None

    def put(self, key: str, answer: _V, seconds: float) -> None:
        self._answers[key] = (self._now() + seconds, answer)
        self._answers.move_to_end(key)
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)


def certified(certificate: Mapping[str, Any] | None) -> User | None:
    """The user of a client certificate that TLS has verified: its common name, its organizations as groups."""
    parts = [pair for names in (certificate or {}).get("subject", ()) for pair in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = tuple(value for key, value in parts if key == "organizationName")
    return User(name, (*groups, "system:authenticated")) if name else None


def _user(found: Mapping[str, Any]) -> User:
    extra = tuple(sorted((str(key), tuple(map(str, values))) for key, values in (found.get("extra") or {}).items()))
    groups = tuple(map(str, found.get("groups") or ()))
    return User(str(found.get("username", "")), groups, str(found.get("uid", "")), extra)


def _matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


# -- TLS -------------------------------------------------------------------------------------------------------------


def context(
    cert: Path | None = None, key: Path | None = None, client_ca: Path | None = None, minimum: str = ""
) -> ssl.SSLContext:
    """A server's context; without files a certificate is made, which no client can verify.

    Raises OSError, ssl.SSLError for files that can't be used, ValueError for an unknown minimum version.
    """
    if minimum not in TLS_VERSIONS:
        raise ValueError(f"unknown TLS version {minimum!r}: want {' or '.join(filter(None, TLS_VERSIONS))}")
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = TLS_VERSIONS[minimum]
    if cert is not None:
        made.load_cert_chain(cert, key)
    else:
        _load(made, self_signed((socket.gethostname(), "localhost", "127.0.0.1")))
    if client_ca is not None:
        made.load_verify_locations(client_ca)
        made.verify_mode = ssl.CERT_OPTIONAL
    return made


def _load(into: ssl.SSLContext, pem: bytes) -> None:
    """Load a key with its certificate that is in no file: `ssl` takes names only."""
    descriptor = os.memfd_create("self-signed")
    try:
        os.write(descriptor, pem)
        into.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def self_signed(names: Iterable[str]) -> bytes:
    """A key and a certificate for these names and addresses, good for a year; PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    known = list(dict.fromkeys(names))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, known[0][:64])])
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
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in known]), critical=False)
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
