"""Delegated authentication and authorization for HTTPS pages, as on the secure port of Kubernetes components.

A caller is authenticated by client certificate or TokenReview and authorized for the path by SubjectAccessReview. A
token is for the audience PAGES_AUDIENCE, so that a server that receives it cannot use it at the API server, or for the
API server itself, as those of a Prometheus. The header PAGE_TOKEN_HEADER carries tokens of that audience only. Results
are cached for some seconds. Reviews that are not cached are limited by the caller's address: invented tokens and paths
must not become load of the API server. This module is independent of any binary and its flags.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from aiohttp import web

from koordlet.api.names import PAGE_TOKEN_HEADER, PAGES_AUDIENCE
from koordlet.app.clock import Clock
from koordlet.app.connections import client_address
from koordlet.app.logging import get_logger
from koordlet.kube.client import Client
from koordlet.kube.errors import KubeError

log = get_logger(__name__)

ANONYMOUS: Final = "system:anonymous"
MASTERS: Final = "system:masters"
PUBLIC: Final = ("/healthz", "/readyz", "/livez")
"""Paths that need no authorization, as by default in kube-scheduler."""
REVIEWS_PER_SECOND: Final = 5.0
REVIEW_BURST: Final = 50.0
"""Reviews for callers of one address that are not cached. A Prometheus needs two in ten seconds."""
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
        self._budget = ReviewBudget(client.clock)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """401 for an invalid token, 403 without permission, 429 after too many new tokens or paths, 503 while the API
        server cannot be called."""
        try:
            user = await self._caller(request)
            if user is None:
                return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
            verb = _VERBS.get(request.method, request.method.lower())
            if not await self._is_allowed(user, verb, request):
                text = f'forbidden: User "{user.name}" cannot {verb} path "{request.path}"\n'
                return web.Response(status=403, text=text)
        except TooManyReviews:
            text = "too many requests with new tokens or paths from this address\n"
            return web.Response(status=429, text=text, headers={"Retry-After": "1"})
        except KubeError as error:
            log.once("cannot-authorize", "Cannot authorize a request", path=request.path, err=error)
            return web.Response(status=503, text="cannot call the API server to authorize the request\n")
        return await handler(request)

    async def _caller(self, request: web.Request) -> AuthenticatedUser | None:
        """The user; ANONYMOUS_USER without credentials; None with invalid credentials."""
        user = certified(request.transport.get_extra_info("peercert")) if request.transport is not None else None
        if user is not None:
            return user
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self._of_token(token.strip(), request)
        token = request.headers.get(PAGE_TOKEN_HEADER, "").strip()
        if not token:
            return ANONYMOUS_USER
        return await self._of_token(token, request) if PAGES_AUDIENCE in claimed_audiences(token) else None

    async def _of_token(self, token: str, request: web.Request) -> AuthenticatedUser | None:
        key = hashlib.sha256(token.encode()).hexdigest()
        cached = self._users.get(key)
        if cached is not None:
            return cached[0]
        audiences = [PAGES_AUDIENCE] if PAGES_AUDIENCE in claimed_audiences(token) else []
        spec = {"token": token, "audiences": audiences} if audiences else {"token": token}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = await self._post("/apis/authentication.k8s.io/v1/tokenreviews", body, request)
        # an authenticator that ignores audiences returns none of them
        known = bool(status.get("authenticated")) and set(audiences) <= set(status.get("audiences") or ())
        user = _user(status.get("user") or {}) if known else None
        self._users.put(key, user, self._token_seconds)
        return user

    async def _is_allowed(self, user: AuthenticatedUser, verb: str, request: web.Request) -> bool:
        path = request.path
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
        status = await self._post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body, request)
        allowed = bool(status.get("allowed"))
        self._decisions.put(key, allowed, self._decision_seconds[allowed])
        return allowed

    async def _post(self, path: str, body: Mapping[str, Any], request: web.Request) -> dict[str, Any]:
        """Raises TooManyReviews, KubeError."""
        transport = request.transport
        self._budget.take(client_address(transport.get_extra_info("peername") if transport is not None else None))
        review = json.loads(await self._client.raw("POST", path, body=body))
        return dict(review.get("status") or {})


class TooManyReviews(Exception):
    """An address has used up its reviews."""


class ReviewBudget:
    """A token bucket for each address; at most _CACHE_ENTRIES, the least recently used is dropped first."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> (time, reviews left then)."""

    def take(self, address: str) -> None:
        """Count a review. Raises TooManyReviews."""
        now = self._now()
        since, left = self._left.pop(address, (now, REVIEW_BURST))
        left = min(REVIEW_BURST, left + (now - since) * REVIEWS_PER_SECOND)
        self._left[address] = (now, left - 1 if left >= 1 else left)
        if len(self._left) > _CACHE_ENTRIES:
            self._left.popitem(last=False)
        if left < 1:
            raise TooManyReviews


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


def claimed_audiences(token: str) -> tuple[str, ...]:
    """The audiences that a service account's token names, without verification: they select what the API server is
    asked. Empty for other tokens."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, RecursionError):
        return ()
    audiences = claims.get("aud") if isinstance(claims, dict) else None
    return tuple(each for each in audiences if isinstance(each, str)) if isinstance(audiences, list) else ()


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
