"""Access reviews, token reviews and self reviews: a status is computed, nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from control.standalone import errors
from control.standalone.auth.authenticate import authenticated
from control.standalone.auth.jwt import JwtError
from control.standalone.auth.rbac import RBAC
from control.standalone.auth.serviceaccounts import ServiceAccountTokens
from control.standalone.auth.tokenfile import StaticTokens
from control.standalone.kinds import ResourceKind
from control.standalone.policyinterfaces import ApiUser, AuthzAttributes
from control.standalone.schema import fielderrors as fe

Json = dict[str, Any]


_TEXTS = ("user", "uid", "token", "namespace")
_LISTS = ("groups", "audiences")
_OBJECTS = ("resourceAttributes", "nonResourceAttributes", "extra")
"""Fields of `spec`, over all kinds of reviews; a field that is null is absent."""


class AccessReviews:
    """Implements `http.server.Reviews`: `await reviews.review(kind, namespace, body, user)` -> body with status."""

    def __init__(self, rbac: RBAC, static: StaticTokens, accounts: ServiceAccountTokens) -> None:
        self._rbac = rbac
        self._static = static
        self._accounts = accounts
        self._handlers: dict[str, Callable[[str, Json, ApiUser], Json]] = {
            "SelfSubjectAccessReview": self._self_access,
            "SubjectAccessReview": self._subject_access,
            "LocalSubjectAccessReview": self._local_access,
            "SelfSubjectRulesReview": self._self_rules,
            "SelfSubjectReview": self._who_am_i,
            "TokenReview": self._token,
        }

    async def review(self, kind: ResourceKind, namespace: str, body: Json, user: ApiUser) -> Json:
        handler = self._handlers.get(kind.kind)
        if handler is None:
            raise errors.method_not_allowed()
        _check_types(body)
        status = handler(namespace, body.get("spec") or {}, user)
        head = {"kind": kind.kind, "apiVersion": kind.served_as()}
        return {**head, "metadata": body.get("metadata") or {}, **_spec(kind, body), "status": status}

    def _self_access(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        return self._decide(spec, user, "SelfSubjectAccessReview")

    def _subject_access(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        if not spec.get("user") and not spec.get("groups"):
            field_error = fe.required("spec.user", "at least one of user or group must be specified")
            raise errors.invalid("authorization.k8s.io", "SubjectAccessReview", "", [field_error])
        extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
        reviewed_user = ApiUser(
            str(spec.get("user") or ""), tuple(spec.get("groups") or ()), str(spec.get("uid") or ""), extra
        )
        return self._decide(spec, reviewed_user, "SubjectAccessReview")

    def _local_access(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        attributes = spec.get("resourceAttributes")
        if not attributes or attributes.get("namespace", namespace) != namespace:
            value = (attributes or {}).get("namespace", "")
            field_error = fe.invalid("spec.resourceAttributes.namespace", value, "must match metadata.namespace")
            raise errors.invalid("authorization.k8s.io", "LocalSubjectAccessReview", "", [field_error])
        return self._subject_access(namespace, spec, user)

    def _decide(self, spec: Json, user: ApiUser, kind: str) -> Json:
        resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (resource is None) == (path is None):
            message = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            field_error = fe.invalid("spec.resourceAttributes", resource, message)
            raise errors.invalid("authorization.k8s.io", kind, "", [field_error])
        allowed, reason = self._rbac.authorize(_attributes(resource, path, user))
        status: Json = {"allowed": allowed}
        if reason:
            status["reason"] = reason
        return status

    def _self_rules(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        rules = self._rbac.rules_for(user, str(spec.get("namespace") or "default"))
        fields = ("verbs", "apiGroups", "resources", "resourceNames")
        return {
            "resourceRules": [
                {field: list(rule[field]) for field in fields if rule.get(field)}
                for rule in rules
                if rule.get("resources")
            ],
            "nonResourceRules": [
                {"verbs": list(rule["verbs"]), "nonResourceURLs": list(rule["nonResourceURLs"])}
                for rule in rules
                if rule.get("nonResourceURLs")
            ],
            "incomplete": False,
        }

    def _who_am_i(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        return {"userInfo": user_info(user)}

    def _token(self, namespace: str, spec: Json, user: ApiUser) -> Json:
        token, audiences = str(spec.get("token") or ""), list(spec.get("audiences") or ())
        token_user = self._static.find(token) if not audiences or self._accounts.issuer in audiences else None
        if token_user is not None:
            shared = [self._accounts.issuer]
        else:
            try:
                verified = self._accounts.verify(token, audiences)
            except JwtError as error:
                return {"user": {}, "error": f"invalid bearer token: {error}"}
            token_user, shared = verified.user, list(verified.audiences)
        return {"authenticated": True, "user": user_info(authenticated(token_user)), "audiences": shared}


def _check_types(body: Json) -> None:
    """Raises StatusError 400 for a field of another type: these kinds are not checked by a schema."""
    spec = body.get("spec") or {}
    if not isinstance(spec, dict):
        raise errors.bad_request("spec: must be an object")
    for name, value in spec.items():
        if value is None:
            continue
        if name in _TEXTS and not isinstance(value, str):
            raise errors.bad_request(f"spec.{name}: must be a string")
        if name in _LISTS and not _is_texts(value):
            raise errors.bad_request(f"spec.{name}: must be a list of strings")
        if name in _OBJECTS and not isinstance(value, dict):
            raise errors.bad_request(f"spec.{name}: must be an object")
    if not all(_is_texts(values) for values in (spec.get("extra") or {}).values()):
        raise errors.bad_request("spec.extra: must be an object of lists of strings")


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def user_info(user: ApiUser) -> Json:
    """authentication.k8s.io UserInfo."""
    out: Json = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra.items()}
    return {key: value for key, value in out.items() if value}


def _spec(kind: ResourceKind, body: Json) -> Json:
    return {} if kind.kind == "SelfSubjectReview" else {"spec": body.get("spec") or {}}


def _attributes(resource: Mapping[str, Any] | None, path: Mapping[str, Any] | None, user: ApiUser) -> AuthzAttributes:
    if resource is None:
        request = path or {}
        return AuthzAttributes(user, str(request.get("verb", "")), path=str(request.get("path", "")))
    return AuthzAttributes(
        user,
        str(resource.get("verb", "")),
        str(resource.get("group", "")),
        str(resource.get("version", "")),
        str(resource.get("resource", "")),
        str(resource.get("subresource", "")),
        str(resource.get("namespace", "")),
        str(resource.get("name", "")),
    )
