"""Authentication and authorization of the kubelet's callers: client certificates, and bearer tokens by the API server
or a static file.

As in a real kubelet, a client certificate takes precedence over a token, a token is verified by TokenReview and the
request by SubjectAccessReview on nodes/<subresource>; results are cached. While the API server is unavailable, callers
that it accepted before are accepted for up to `STALE_SECONDS`, so that koordlet can read /pods; other tokens get 503.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.standalone.auth.authenticate import certificate_user
from control.standalone.kubelet.node.apirequests import NodeApi
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube.errors import KubeError

log = get_logger(__name__)

ACCEPTED_SECONDS = 120.0
REFUSED_SECONDS = 10.0
STALE_SECONDS = 600.0
CACHE_SIZE = 1024


class AuthError(Exception):
    """The request is rejected; `status` is 401, 403 or 503."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class TokenUser:
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    static: bool = False

    def as_api(self) -> dict[str, Any]:
        return {"username": self.name, "uid": self.uid, "groups": list(self.groups)}


@dataclass(frozen=True, slots=True)
class _Cached:
    value: Any
    good: bool
    at: float


class _Cache:
    """Results by key; the oldest is removed when the cache is full."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Any, _Cached] = {}

    def get(self, key: Any, stale: bool = False) -> _Cached | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        limit = (STALE_SECONDS if stale else ACCEPTED_SECONDS) if entry.good else REFUSED_SECONDS
        return entry if self._clock.monotonic() - entry.at <= limit else None

    def put(self, key: Any, value: Any, good: bool) -> None:
        self._entries.pop(key, None)
        if len(self._entries) >= CACHE_SIZE:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Cached(value, good, self._clock.monotonic())


def _user(info: Mapping[str, Any]) -> TokenUser:
    """From the UserInfo of a TokenReview."""
    return TokenUser(str(info.get("username", "")), str(info.get("uid", "")), tuple(info.get("groups") or ()))


def read_token_file(path: Path) -> dict[str, TokenUser]:
    """Lines of `token,user,uid[,"group1,group2"]`. Raises ValueError naming file and line."""
    out: dict[str, TokenUser] = {}
    with path.open(newline="") as f:
        for number, row in enumerate(csv.reader(f), 1):
            if not row:
                continue
            if len(row) < 3 or not row[0]:
                raise ValueError(f"{path}:{number}: want token,user,uid[,groups]")
            groups = tuple(g.strip() for g in row[3].split(",")) if len(row) > 3 and row[3] else ()
            out[row[0]] = TokenUser(row[1], row[2], groups, static=True)
    return out


class KubeletAuth:
    def __init__(
        self, api: NodeApi, clock: Clock, static: Mapping[str, TokenUser], ask_authorizer: bool = True
    ) -> None:
        self._api = api
        self._static = dict(static)
        self._ask_authorizer = ask_authorizer
        self._tokens = _Cache(clock)
        self._rights = _Cache(clock)

    async def check(
        self, authorization: str | None, verb: str, subresources: tuple[str, ...], peer_cert: Any = None
    ) -> TokenUser:
        """The caller, if it may do `verb` on one of `subresources`; else raises `AuthError`.

        `peer_cert` is the verified client certificate as `ssl.SSLSocket.getpeercert()` returns it.
        """
        user = await self._caller(authorization, peer_cert)
        if user.static or not self._ask_authorizer:
            return user
        unknown: KubeError | None = None
        for subresource in subresources:
            try:
                if await self._may(user, verb, subresource):
                    return user
            except KubeError as error:
                unknown = error
        if unknown is not None:
            raise AuthError(503, "the API server is unavailable, cannot authorize this user") from unknown
        listed = " ".join(subresources)
        raise AuthError(403, f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{listed}])")

    async def _caller(self, authorization: str | None, peer_cert: Any) -> TokenUser:
        if peer_cert and (user := certificate_user(peer_cert)) is not None:
            return TokenUser(user.name, "", user.groups)
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise AuthError(401, "Unauthorized")
        return self._static.get(token) or await self._review(token)

    async def _review(self, token: str) -> TokenUser:
        key = hashlib.sha256(token.encode()).digest()  # the token itself is not stored
        entry = self._tokens.get(key)
        if entry is None:
            try:
                status = await self._api.token_review(token)
            except KubeError as error:
                entry = self._tokens.get(key, stale=True)
                if entry is None or not entry.good:
                    log.warning("Cannot verify a token", err=error)
                    raise AuthError(503, "the API server is unavailable, cannot verify this token") from error
            else:
                user = _user(status.get("user") or {})
                good = bool(status.get("authenticated"))
                self._tokens.put(key, user, good)
                entry = _Cached(user, good, 0.0)
        if not entry.good:
            raise AuthError(401, "Unauthorized")
        cached_user: TokenUser = entry.value
        return cached_user

    async def _may(self, user: TokenUser, verb: str, subresource: str) -> bool:
        """Raises `KubeError` when the API server is unavailable and no usable result is cached."""
        key = (user, verb, subresource)
        entry = self._rights.get(key)
        if entry is not None:
            return entry.good
        try:
            allowed = await self._api.may(user.as_api(), verb, subresource)
        except KubeError:
            entry = self._rights.get(key, stale=True)
            if entry is None:
                raise
            return entry.good
        self._rights.put(key, None, allowed)
        return allowed
