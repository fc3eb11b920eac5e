"""Service-account tokens: issued by TokenRequest, bound to the account's uid, verified at every use.

A token is valid while its signature and times are valid, and while its service account (and the pod,
node or secret that it is bound to, if any) exists with the same uid. Tokens are not stored: deleting the account
revokes them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from control.standalone import errors
from control.standalone.auth.jwt import JwtError, Signer
from control.standalone.policyinterfaces import ApiUser
from control.standalone.schema import fielderrors as fe

Json = dict[str, Any]
Lookup = Callable[[str, str | None, str], Json | None]
"""(key "group/plural", namespace, name) -> live object or None, like `ObjectStore.get`."""

MIN_SECONDS, DEFAULT_SECONDS, MAX_SECONDS = 600, 3600, 365 * 24 * 3600
_BOUND_KINDS = {"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}
_PREFIX = "system:serviceaccount"
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_NODE_NAME, _NODE_UID = "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/node-uid"
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class Verified:
    """The user and the audiences of a valid token."""

    user: ApiUser
    audiences: tuple[str, ...]


class ServiceAccountTokens:
    """Issues and verifies tokens. `issuer` is also the server's audience: tokens for others aren't accepted."""

    def __init__(
        self,
        signer: Signer,
        lookup: Lookup,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._signer = signer
        self._lookup = lookup
        self._now = now
        self.issuer = "https://kubernetes.default.svc"

    def request(self, account: Mapping[str, Any], body: Mapping[str, Any]) -> Json:
        """The TokenRequest with a token, for an existing service account; raises StatusError 422 for an invalid one."""
        spec = body.get("spec") or {}
        seconds = spec.get("expirationSeconds", DEFAULT_SECONDS)
        if not isinstance(seconds, int) or seconds < MIN_SECONDS:
            field_error = fe.invalid(
                "spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes"
            )
            raise errors.invalid("authentication.k8s.io", "TokenRequest", "", [field_error])
        seconds = min(seconds, MAX_SECONDS)
        audiences = list(spec.get("audiences") or [self.issuer])
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        bound = self._bound(namespace, spec.get("boundObjectRef"))
        start = int(self._now())
        identity: Json = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        identity.update(bound)
        claims = {
            "aud": audiences,
            "exp": start + seconds,
            "iat": start,
            "iss": self.issuer,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": identity,
            "nbf": start,
            "sub": f"{_PREFIX}:{namespace}:{name}",
        }
        expires = datetime.fromtimestamp(start + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": self._signer.sign(claims), "expirationTimestamp": expires},
        }

    def _bound(self, namespace: str, ref: Mapping[str, Any] | None) -> Json:
        if not ref:
            return {}
        kind, name = str(ref.get("kind", "")), str(ref.get("name", ""))
        key = _BOUND_KINDS.get(kind)
        if key is None:
            field_error = fe.not_supported("spec.boundObjectRef.kind", kind, sorted(_BOUND_KINDS))
            raise errors.invalid("authentication.k8s.io", "TokenRequest", "", [field_error])
        target = self._lookup(key, None if kind == "Node" else namespace, name)
        if target is None:
            raise errors.not_found("", key.removeprefix("/"), name)
        uid = target["metadata"]["uid"]
        if ref.get("uid") and ref["uid"] != uid:
            why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record ({uid})"
            raise errors.conflict("", key.removeprefix("/"), name, why)
        bound: Json = {kind.lower(): {"name": name, "uid": uid}}
        node = (target.get("spec") or {}).get("nodeName") if kind == "Pod" else None
        if node and (live := self._lookup("/nodes", None, node)) is not None:
            bound["node"] = {"name": node, "uid": live["metadata"]["uid"]}
        return bound

    def verify(self, token: str, audiences: Sequence[str] = ()) -> Verified:
        """The user of a token; raises JwtError. Without `audiences` the token must be for this server."""
        claims = self._signer.verify(token)
        now = self._now()
        try:
            if claims["iss"] != self.issuer:
                raise JwtError("token of another issuer")
            if now >= float(claims["exp"]) or now < float(claims["nbf"]):
                raise JwtError("service account token has expired")
            shared = [each for each in claims["aud"] if each in (audiences or (self.issuer,))]
            if not shared:
                raise JwtError("token audiences don't match")
            return Verified(self._user(claims["kubernetes.io"], str(claims.get("jti", ""))), tuple(shared))
        except (KeyError, TypeError) as error:
            raise JwtError(f"token lacks a claim: {error}") from error

    def _user(self, identity: Mapping[str, Any], credential: str) -> ApiUser:
        namespace, account = identity["namespace"], identity["serviceaccount"]
        self._alive("/serviceaccounts", namespace, account)
        extra: dict[str, tuple[str, ...]] = {_CREDENTIAL: (f"JTI={credential}",)} if credential else {}
        if pod := identity.get("pod"):
            self._alive("/pods", namespace, pod)
            extra |= {_POD_NAME: (pod["name"],), _POD_UID: (pod["uid"],)}
        if secret := identity.get("secret"):
            self._alive("/secrets", namespace, secret)
        if node := identity.get("node"):
            extra |= {_NODE_NAME: (node["name"],), _NODE_UID: (node["uid"],)}
            if not pod:
                self._alive("/nodes", None, node)
        return service_account_user(namespace, account["name"], account["uid"], extra)

    def _alive(self, key: str, namespace: str | None, ref: Mapping[str, Any]) -> None:
        target = self._lookup(key, namespace, ref["name"])
        if target is None or target["metadata"]["uid"] != ref["uid"]:
            kind = key.removeprefix("/").removesuffix("s")
            raise JwtError(f"the {kind} this token is bound to is gone")


def service_account_user(
    namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None
) -> ApiUser:
    """The user of a service account."""
    groups = (f"{_PREFIX}s", f"{_PREFIX}s:{namespace}", "system:authenticated")
    return ApiUser(f"{_PREFIX}:{namespace}:{name}", groups, uid, extra or {})
