"""Authentication and authorization: tokens and certificates, RBAC, access reviews.

`apiserver.policy` builds them:

    signer = Signer.from_pem(pki.sa_key_file.read_bytes())
    accounts = ServiceAccountTokens(signer, store.get)
    static = StaticTokens([(admin_token, ApiUser("admin", ("system:masters",)))])   # or StaticTokens.read(path)
    rbac = RBAC(store)
    authenticator = Authentication(static, accounts)      # policyinterfaces.Authenticator
    authorizer = rbac                                     # policyinterfaces.Authorizer
    reviews = AccessReviews(rbac, static, accounts)       # http.server.Reviews
    issue = accounts.request                              # http.subresources.TokenIssuer
    for key, obj in bootstrap.objects(): create if missing
"""

from __future__ import annotations

from control.standalone.auth import bootstrap
from control.standalone.auth.authenticate import Authentication
from control.standalone.auth.jwt import JwtError, Signer
from control.standalone.auth.rbac import RBAC
from control.standalone.auth.reviews import AccessReviews
from control.standalone.auth.serviceaccounts import ServiceAccountTokens, service_account_user
from control.standalone.auth.tokenfile import StaticTokens, TokenFileError

__all__ = [
    "RBAC",
    "AccessReviews",
    "Authentication",
    "JwtError",
    "ServiceAccountTokens",
    "Signer",
    "StaticTokens",
    "TokenFileError",
    "bootstrap",
    "service_account_user",
]
