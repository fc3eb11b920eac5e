"""What the registry and the HTTP layer need from policy: schemas, patching, admission, authn, authz.

Protocols with permissive defaults, so that the core runs and is tested alone; `apiserver.policy` plugs in the
real libraries (control.standalone.schema, .patch, .admission, .auth). Pure types, no behaviour.
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
class RequestUser:
    """Who asks. `extra` as in authentication.k8s.io UserInfo."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


SYSTEM = RequestUser("system:apiserver", ("system:masters", "system:authenticated"))
ANONYMOUS = RequestUser("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class AuthzAttributes:
    """One question to the authorizer: a resource request, or a path (`resource` empty)."""

    user: RequestUser
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
    """One write on its way in. Mutating admission changes `obj` in place or replaces it."""

    operation: Operation
    kind: ResourceKind
    version: str  # the served version the request came in
    namespace: str
    name: str
    obj: Json | None  # None for DELETE
    old: Json | None  # None for CREATE
    user: RequestUser
    subresource: str = ""
    dry_run: bool = False
    options: Json = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Schemas(Protocol):
    """Structure of kinds: strictness, defaults, validation, merge information, documentation."""

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        """Paths of fields the schema doesn't know; for CRDs without preserve they are pruned from `obj`."""
        ...

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        """Fill schema defaults in place."""
        ...

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]: ...

    def merge_schema(self, kind: ResourceKind, version: str) -> Any:
        """What strategic merge patch and apply take as `schema`; None when there is none."""
        ...


class Patcher(Protocol):
    def json(self, doc: Json, ops: Any) -> Json: ...

    def merge(self, doc: Json, patch: Any) -> Json: ...

    def strategic(self, doc: Json, patch: Json, schema: Any) -> Json: ...

    def apply(
        self,
        live: Json | None,
        applied: Json,
        manager: str,
        force: bool,
        schema: Any,
        subresource: str,
        api_version: str,
        now: str,
    ) -> tuple[Json, list[Any]]: ...

    def track(
        self, live: Json | None, new: Json, manager: str, operation: str, schema: Any, subresource: str, now: str
    ) -> None:
        """Bring new.metadata.managedFields up to date after a write that was not an apply."""
        ...


class Admission(Protocol):
    async def mutate(self, request: AdmissionAttributes) -> None: ...

    async def validate(self, request: AdmissionAttributes) -> None:
        """Raises StatusError to refuse."""
        ...


class Authenticator(Protocol):
    async def authenticate(self, headers: Mapping[str, str], peer_cert: Json | None) -> RequestUser | None:
        """None: no usable credential was presented; raises StatusError(401) for a bad one."""
        ...


class Authorizer(Protocol):
    def authorize(self, attributes: AuthzAttributes) -> tuple[bool, str]:
        """(allowed, reason)."""
        ...


class OpenSchemas:
    """Knows nothing and accepts everything."""

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        return []

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        return None

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]:
        return []

    def merge_schema(self, kind: ResourceKind, version: str) -> Any:
        return None


class OpenAdmission:
    """Lets everything in unchanged."""

    async def mutate(self, request: AdmissionAttributes) -> None:
        return None

    async def validate(self, request: AdmissionAttributes) -> None:
        return None
