"""Who is asking: bearer tokens (static, service account) and client certificates.

Order as in Kubernetes: a certificate that TLS verified against our CA, then the bearer token. No credential
is the anonymous user (None), a wrong one is 401. Everybody authenticated is in `system:authenticated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from control.standalone import errors
from control.standalone.auth.jwt import JwtError
from control.standalone.auth.serviceaccounts import ServiceAccountTokens
from control.standalone.auth.tokenfile import StaticTokens
from control.standalone.policyinterfaces import RequestUser

AUTHENTICATED = "system:authenticated"


class Authentication:
    """The `Authenticator` seam. `peer_cert` is what `ssl.SSLSocket.getpeercert()` gives, or None."""

    def __init__(self, static: StaticTokens, accounts: ServiceAccountTokens, anonymous: bool = True) -> None:
        self._static = static
        self._accounts = accounts
        self._anonymous = anonymous

    async def authenticate(self, headers: Mapping[str, str], peer_cert: Any) -> RequestUser | None:
        if peer_cert and (user := certificate_user(peer_cert)) is not None:
            return user
        kind, _, token = headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if kind.lower() == "bearer" and token:
            user = self.by_token(token)
            if user is None:
                raise errors.unauthorized()
            return user
        if headers.get("Authorization") or not self._anonymous:
            raise errors.unauthorized()
        return None

    def by_token(self, token: str) -> RequestUser | None:
        """The user of a bearer token for this server, None for a bad one."""
        user = self._static.find(token)
        if user is None:
            try:
                user = self._accounts.verify(token).user
            except JwtError:
                return None
        return authenticated(user)


def authenticated(user: RequestUser) -> RequestUser:
    return user if AUTHENTICATED in user.groups else replace(user, groups=(*user.groups, AUTHENTICATED))


def certificate_user(peer_cert: Mapping[str, Any]) -> RequestUser | None:
    """CN is the user, every O a group; None for a certificate without CN."""
    names: dict[str, list[str]] = {}
    for part in peer_cert.get("subject") or ():
        for key, value in part:
            names.setdefault(key, []).append(value)
    common = names.get("commonName")
    return authenticated(RequestUser(common[-1], tuple(names.get("organizationName", ())))) if common else None
