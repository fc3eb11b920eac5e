"""Plugging the policy libraries into the server: schemas, patches, authn, authz, admission, controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..auth import RBAC, AccessReviews, Authentication, ServiceAccountTokens, Signer, StaticTokens
from ..http.server import OpenAPIDocs, Reviews
from ..http.subresources import EvictionGate, TokenIssuer, no_budgets
from ..patch import Patches
from ..registry import Registry
from ..schema.builtin import Builtins
from ..schema.openapi import OpenAPI
from ..seams import Authenticator, Authorizer, UserInfo
from .tls import Pki

if TYPE_CHECKING:
    from .server import Config


@dataclass(slots=True)
class Policy:
    authenticator: Authenticator
    authorizer: Authorizer
    reviews: Reviews | None
    openapi: OpenAPIDocs | None
    eviction_gate: EvictionGate
    issue_token: TokenIssuer | None
    controllers: list[Any]

    async def start(self) -> None:
        for controller in self.controllers:
            await controller.start()

    async def stop(self) -> None:
        for controller in reversed(self.controllers):
            await controller.stop()


def build_policy(config: Config, registry: Registry, pki: Pki, admin_token: str) -> Policy:
    """Make the policy objects and hang schemas, admission and patches onto `registry`."""
    registry.patcher = Patches()
    builtins = Builtins()
    static = StaticTokens.read(config.token_auth_file) if config.token_auth_file else StaticTokens()
    static.add(admin_token, UserInfo("admin", ("system:masters",)))
    accounts = ServiceAccountTokens(Signer.from_pem(pki.sa_key_file.read_bytes()), registry.store.get)
    rbac = RBAC(registry.store)
    return Policy(
        Authentication(static, accounts, config.anonymous),
        rbac,
        AccessReviews(rbac, static, accounts),
        OpenAPI(registry.kinds, builtins),
        no_budgets,
        accounts.request,
        [],
    )
