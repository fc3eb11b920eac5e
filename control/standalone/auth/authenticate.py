"""Authentication of requests: bearer tokens (static, service account) and client certificates.

The order is Kubernetes': a client certificate that TLS verified with the server's CA, then the bearer token. Without
credentials the user is anonymous (None); an invalid credential is a 401. Authenticated users are in the group
`system:authenticated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from control.standalone import errors
from control.standalone.auth.jwt import JwtError
from control.standalone.auth.serviceaccounts import ServiceAccountTokens
from control.standalone.auth.tokenfile import StaticTokens
from control.standalone.policyinterfaces import ApiUser

AUTHENTICATED = "system:authenticated"


class Authentication:
    """Implements `policyinterfaces.Authenticator`. `peer_cert` is the result of `ssl.SSLSocket.getpeercert()`."""

    def __init__(self, static: StaticTokens, accounts: ServiceAccountTokens, anonymous: bool = True) -> None:
        self._static = static
        self._accounts = accounts
        self._anonymous = anonymous

    async def authenticate(self, headers: Mapping[str, str], peer_cert: Any) -> ApiUser | None:
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

    def by_token(self, token: str) -> ApiUser | None:
        """The user of a bearer token; None for an invalid token."""
        user = self._static.find(token)
        if user is None:
            try:
                user = self._accounts.verify(token).user
            except JwtError:
                return None
        return authenticated(user)


def authenticated(user: ApiUser) -> ApiUser:
    return user if AUTHENTICATED in user.groups else replace(user, groups=(*user.groups, AUTHENTICATED))


def certificate_user(peer_cert: Mapping[str, Any]) -> ApiUser | None:
    """The common name is the user, every organization a group; None for a certificate without a common name."""
    names: dict[str, list[str]] = {}
    for part in peer_cert.get("subject") or ():
        for key, value in part:
            names.setdefault(key, []).append(value)
    common = names.get("commonName")
    return authenticated(ApiUser(common[-1], tuple(names.get("organizationName", ())))) if common else None
