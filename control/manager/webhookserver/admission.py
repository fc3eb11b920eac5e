"""The admission wire contract (spec 04 §10): what a handler is given, and what it answers.

    class MutatePod(Handler):
        path, gate = "/mutate-pod", "PodMutatingWebhook"
        resources = frozenset({("", "pods", "")})
        async def handle(self, request):
            change = Change(request, Pod)        # decodes; Undecodable (400) names the field
            if refused: return Denied("metadata.labels: Forbidden: …")
            change.object.metadata.labels["a"] = "b"
            return change.result()               # Allowed, or Patched with exactly what was changed

AdmissionReview `v1` and `v1beta1` are the same but for their name. Requests for other resources never reach a handler.
A handler that raises is answered as 500 with the cause in the log, never with a dropped connection.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from control.manager.webhookserver import jsonpatch
from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct

T = TypeVar("T", bound=msgspec.Struct)

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"


class GroupVersionKind(Struct):
    """A kind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Struct):
    """A resource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Struct):
    """Who asks."""

    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class AdmissionRequest(Struct):
    """What is to be admitted. `object` and `old_object` are JSON as it came; absent ones are `null` or empty."""

    uid: str = ""
    kind: GroupVersionKind = msgspec.field(default_factory=GroupVersionKind)
    resource: GroupVersionResource = msgspec.field(default_factory=GroupVersionResource)
    sub_resource: str = ""
    request_kind: GroupVersionKind | None = None
    request_resource: GroupVersionResource | None = None
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    old_object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    dry_run: bool | None = None
    options: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))

    @property
    def has_object(self) -> bool:
        return bytes(self.object) not in (b"", b"null")

    @property
    def has_old_object(self) -> bool:
        return bytes(self.old_object) not in (b"", b"null")

    def decode(self, kind: type[T]) -> T:
        """The object. Raises Undecodable."""
        return self._decode(self.object, kind, "object")

    def decode_old(self, kind: type[T]) -> T:
        """The object as it was (UPDATE, DELETE). Raises Undecodable."""
        return self._decode(self.old_object, kind, "oldObject")

    def _decode(self, raw: msgspec.Raw, kind: type[T], field: str) -> T:
        data = bytes(raw)
        if data in (b"", b"null"):
            raise Undecodable(f"the request has no {field}")
        where = f"{kind.__name__} {'/'.join(part for part in (self.namespace, self.name) if part)}".rstrip()
        try:
            found: T = wire.json_decoder(kind).decode(data, where=where)
        except wire.WireError as error:
            raise Undecodable(str(error)) from error
        return found


class Undecodable(ValueError):
    """An object that can't be read; answered as 400 with this message."""


@dataclass(frozen=True)
class Allowed:
    """Admitted as it is."""

    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Denied:
    """Refused. `code` 400 is a validator's refusal, 403 with reason Forbidden a binding's, 500 a failed mutation."""

    message: str
    code: int = 400
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patched:
    """Admitted with changes: RFC 6902 operations, never none."""

    operations: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...] = ()


Response = Allowed | Denied | Patched


class Change(Generic[T]):
    """An object under mutation: decoded once, changed in place by its owner, compared at the end."""

    def __init__(self, request: AdmissionRequest, kind: type[T]) -> None:
        """Raises Undecodable."""
        self.object: T = request.decode(kind)
        self._raw = bytes(request.object)
        self._before = wire.to_builtins(self.object)

    def result(self, warnings: tuple[str, ...] = ()) -> Allowed | Patched:
        """What became of it; fields that the type does not know stay as they came."""
        after = wire.to_builtins(self.object)
        if jsonpatch.same(self._before, after):
            return Allowed(warnings=warnings)
        operations = jsonpatch.patch(msgspec.json.decode(self._raw), self._before, after)
        return Patched(tuple(operations), warnings) if operations else Allowed(warnings=warnings)


def patched(before: Any, after: Any, warnings: tuple[str, ...] = ()) -> Allowed | Patched:
    """The answer of a handler that changes plain JSON: `before` as it came, `after` as it should be."""
    operations = jsonpatch.diff(before, after)
    return Patched(tuple(operations), warnings) if operations else Allowed(warnings=warnings)


class Handler(ABC):
    """One webhook path. `resources` holds (group, resource, subresource); the version does not matter."""

    path: ClassVar[str]
    gate: ClassVar[str]
    resources: ClassVar[frozenset[tuple[str, str, str]]]

    def serves(self, request: AdmissionRequest) -> bool:
        """Whether this is for us; what is not is allowed untouched."""
        resource = request.resource
        return (resource.group, resource.resource, request.sub_resource) in self.resources

    @abstractmethod
    async def handle(self, request: AdmissionRequest) -> Response:
        """The decision. May raise Undecodable; anything else raised is answered as 500. Respect `dry_run`."""


class _Review(Struct):
    kind: str = ""
    api_version: str = ""
    request: AdmissionRequest | None = None


_REVIEWS = msgspec.json.Decoder(_Review)  # written by a machine: nothing to be lenient about


class BadReview(ValueError):
    """A body that is no AdmissionReview; `code` is the HTTP status."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def read_review(body: bytes) -> tuple[str, AdmissionRequest]:
    """(apiVersion, request) of a review. Raises BadReview."""
    if not body:
        raise BadReview("request body is empty")
    try:
        review = _REVIEWS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"AdmissionReview: {error}") from error
    if review.kind != "AdmissionReview":
        raise BadReview(f'AdmissionReview: kind: "{review.kind}" is not AdmissionReview')
    if review.api_version not in VERSIONS:
        raise BadReview(f'AdmissionReview: apiVersion: "{review.api_version}" is none of {", ".join(VERSIONS)}')
    if review.request is None:
        raise BadReview("AdmissionReview: request is missing")
    if not review.request.uid:
        raise BadReview("AdmissionReview: request.uid is missing")
    return review.api_version, review.request


def write_review(version: str, uid: str, response: Response) -> bytes:
    """The review that answers."""
    answer: dict[str, Any] = {"uid": uid, "allowed": not isinstance(response, Denied)}
    match response:
        case Allowed(message=message):
            answer["status"] = {"metadata": {}, "code": 200} | ({"message": message} if message else {})
        case Denied(message=message, code=code, reason=reason):
            answer["status"] = {"metadata": {}, "status": "Failure", "message": message, "code": code}
            if reason:
                answer["status"]["reason"] = reason
        case Patched(operations=operations):
            answer["patchType"] = "JSONPatch"
            answer["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    if response.warnings:
        answer["warnings"] = list(response.warnings)
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": version, "response": answer})
