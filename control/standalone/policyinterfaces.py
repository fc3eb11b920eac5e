"""Interfaces of the policies that registry and HTTP layer use: schemas, admission, authentication, rights.

`apiserver.policy` passes the implementations (control.standalone.schema, .admission, .auth). Types only, no behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from control.standalone.errors import FieldError
from control.standalone.kinds import ResourceKind

Json = dict[str, Any]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(frozen=True, slots=True)
class ApiUser:
    """The user of a request. `extra` as in authentication.k8s.io UserInfo."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


SYSTEM = ApiUser("system:apiserver", ("system:masters", "system:authenticated"))
ANONYMOUS = ApiUser("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class AuthzAttributes:
    """What the authorizer decides about: a resource request, or a path (then `resource` is empty)."""

    user: ApiUser
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass(slots=True)
class AdmissionAttributes:
    """One write before it is stored. Mutating admission changes `obj` in place or replaces it."""

    operation: Operation
    kind: ResourceKind
    version: str  # the served version the request came in
    namespace: str
    name: str
    obj: Json | None  # None for DELETE
    old: Json | None  # None for CREATE
    user: ApiUser
    subresource: str = ""
    dry_run: bool = False
    options: Json = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Schemas(Protocol):
    """Schemas of kinds: unknown fields, defaults, validation, merge keys."""

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        """Paths of fields unknown to the schema. CRDs that don't preserve unknown fields get them pruned from `obj`."""
        ...

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        """Fill in the schema's defaults, in place."""
        ...

    def complete(self, kind: ResourceKind, version: str, obj: Json) -> None:
        """Fill in the parts that every object of the kind has, in place: an empty spec and status."""
        ...

    def zero(self, kind: ResourceKind, version: str) -> Json:
        """What an object without any content has: a new object's fields are managed where they differ from it."""
        ...

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]: ...

    def merge_schema(self, kind: ResourceKind, version: str) -> Any:
        """The `schema` argument of strategic merge patch and apply; None when there is none."""
        ...


class Admission(Protocol):
    async def mutate(self, request: AdmissionAttributes) -> None: ...

    async def validate(self, request: AdmissionAttributes) -> None:
        """Raises StatusError to reject the write."""
        ...


class Authenticator(Protocol):
    async def authenticate(self, headers: Mapping[str, str], peer_cert: Json | None) -> ApiUser | None:
        """None without a usable credential; raises StatusError(401) for an invalid one."""
        ...


class Authorizer(Protocol):
    def authorize(self, attributes: AuthzAttributes) -> tuple[bool, str]:
        """(allowed, reason)."""
        ...
