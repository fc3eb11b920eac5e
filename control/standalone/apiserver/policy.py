"""Builds the policy implementations: schemas, authentication, authorization, admission, controllers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from control.standalone.admission import AdmissionChain
from control.standalone.apiserver.tls import Pki
from control.standalone.auth import RBAC, AccessReviews, Authentication, ServiceAccountTokens, Signer, StaticTokens
from control.standalone.controllers import EmbeddedController, eviction_gate
from control.standalone.controllers import build as build_controllers
from control.standalone.http.server import OpenAPIDocs, Reviews
from control.standalone.http.subresources import EvictionGate, TokenIssuer
from control.standalone.kinds import Kinds
from control.standalone.policyinterfaces import ApiUser, Authenticator, Authorizer
from control.standalone.registry import ObjectRegistry
from control.standalone.schema import KindSchemas
from control.standalone.schema.builtin import Builtins
from control.standalone.store import ObjectStore

if TYPE_CHECKING:
    from control.standalone.apiserver.server import ApiServerConfig


@dataclass(frozen=True, slots=True)
class ServerPolicies:
    registry: ObjectRegistry
    """The objects, with schemas and admission."""
    authenticator: Authenticator
    authorizer: Authorizer
    reviews: Reviews | None
    openapi: OpenAPIDocs | None
    eviction_gate: EvictionGate
    issue_token: TokenIssuer | None
    admission: AdmissionChain
    controllers: list[EmbeddedController]

    async def start(self) -> None:
        for controller in self.controllers:
            await controller.start()

    async def stop(self) -> None:
        for controller in reversed(self.controllers):
            await controller.stop()
        await self.admission.close()


def build_policy(
    config: ApiServerConfig, store: ObjectStore, kinds: Kinds, pki: Pki, admin_token: str
) -> ServerPolicies:
    """Make the policy objects and the registry that applies them."""
    schemas = KindSchemas(_builtins())
    static = StaticTokens.read(config.token_auth_file) if config.token_auth_file else StaticTokens()
    static.add(admin_token, ApiUser("admin", ("system:masters",)))
    accounts = ServiceAccountTokens(Signer.from_pem(pki.sa_key_file.read_bytes()), store.get)
    rbac = RBAC(store)
    admission = AdmissionChain(store, rbac, config.webhook_hosts)
    registry = ObjectRegistry(store, kinds, schemas, admission)
    return ServerPolicies(
        registry,
        Authentication(static, accounts, config.anonymous),
        rbac,
        AccessReviews(rbac, static, accounts),
        schemas.openapi(kinds),
        eviction_gate,
        accounts.request,
        admission,
        build_controllers(registry, pki.ca_pem) if config.controllers else [],
    )


@cache
def _builtins() -> Builtins:
    """Read once per process: the schemas of the built-in kinds never change."""
    return Builtins()
