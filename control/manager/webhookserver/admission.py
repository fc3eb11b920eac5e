"""The admission wire format (spec 04 §10): requests and responses of handlers.

    class MutatePod(WebhookHandler):
        path, gate = "/mutate-pod", "PodMutatingWebhook"
        resources = frozenset({("", "pods", "")})
        async def handle(self, request):
            pod = request.decode(Pod)                          # raises UndecodableObject (400), which names the field
            if …: return DenyResponse("metadata.labels: Forbidden: …")
            before = msgspec.json.decode(bytes(request.object))
            return patch_response(before, changed(before))     # AllowResponse, or PatchResponse with the difference

AdmissionReview `v1` and `v1beta1` differ only in their name. Requests for other resources do not reach a handler. An
exception in a handler is answered with 500 and logged; the connection is not dropped.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from control.manager.webhookserver import jsonpatch
from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct

T = TypeVar("T", bound=msgspec.Struct)

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"


class GroupVersionKind(Struct):
    """Identifies a kind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Struct):
    """Identifies a resource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class RequestUser(Struct):
    """The user that sent the request to the API server."""

    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class WebhookRequest(Struct):
    """The request. `object` and `old_object` are the received JSON; absent ones are `null` or empty."""

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
    user_info: RequestUser = msgspec.field(default_factory=RequestUser)
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    old_object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    dry_run: bool | None = None
    options: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))

    @property
    def has_old_object(self) -> bool:
        return bytes(self.old_object) not in (b"", b"null")

    def decode(self, kind: type[T]) -> T:
        """The object. Raises UndecodableObject."""
        return self._decode(self.object, kind, "object")

    def decode_old(self, kind: type[T]) -> T:
        """The old object (UPDATE, DELETE). Raises UndecodableObject."""
        return self._decode(self.old_object, kind, "oldObject")

    def _decode(self, raw: msgspec.Raw, kind: type[T], field: str) -> T:
        data = bytes(raw)
        if data in (b"", b"null"):
            raise UndecodableObject(f"the request has no {field}")
        where = f"{kind.__name__} {'/'.join(part for part in (self.namespace, self.name) if part)}".rstrip()
        try:
            obj: T = wire.json_decoder(kind).decode(data, where=where)
        except wire.WireError as error:
            raise UndecodableObject(str(error)) from error
        return obj


class UndecodableObject(ValueError):
    """An object is malformed; answered with 400 and this message."""


@dataclass(frozen=True)
class AllowResponse:
    """Admitted without changes."""

    message: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DenyResponse:
    """Refused. `code` is 400 for a validation error, 403 with reason Forbidden for a binding, 500 for a failed
    mutation."""

    message: str
    code: int = 400
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PatchResponse:
    """Admitted with changes: RFC 6902 operations, not empty."""

    operations: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...] = ()


Response = AllowResponse | DenyResponse | PatchResponse


def patch_response(before: Any, after: Any) -> AllowResponse | PatchResponse:
    """The response that changes the received object `before` into `after`, both plain JSON."""
    operations = jsonpatch.diff(before, after)
    return PatchResponse(tuple(operations)) if operations else AllowResponse()


class WebhookHandler(ABC):
    """One webhook path. `resources` holds (group, resource, subresource); any version matches."""

    path: ClassVar[str]
    gate: ClassVar[str]
    resources: ClassVar[frozenset[tuple[str, str, str]]]

    def serves(self, request: WebhookRequest) -> bool:
        """Whether the request is for one of `resources`; other requests are allowed unchanged."""
        resource = request.resource
        return (resource.group, resource.resource, request.sub_resource) in self.resources

    @abstractmethod
    async def handle(self, request: WebhookRequest) -> Response:
        """The decision. May raise UndecodableObject; any other exception is answered with 500. Must respect
        `dry_run`."""


class _Review(Struct):
    kind: str = ""
    api_version: str = ""
    request: WebhookRequest | None = None


_REVIEWS = msgspec.json.Decoder(_Review)  # strict: reviews are written by the API server, not by people
_UID = re.compile(rb'"request":\{"uid":"([0-9A-Za-z-]{1,64})"')
HEAD_BYTES: Final = 4096
"""The beginning of a review, which has its request's uid: the API server writes it as the first field."""


class BadReview(ValueError):
    """The body is not a valid AdmissionReview; `code` is the HTTP status, `head` the beginning of the body."""

    def __init__(self, message: str, code: int = 400, head: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.head = head


def read_review(body: bytes) -> tuple[str, WebhookRequest]:
    """(apiVersion, request) of a review. Raises BadReview."""
    if not body:
        raise BadReview("request body is empty")
    try:
        review = _REVIEWS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"AdmissionReview: {error}", head=body[:HEAD_BYTES]) from error
    if review.kind != "AdmissionReview":
        raise BadReview(f'AdmissionReview: kind: "{review.kind}" is not AdmissionReview')
    if review.api_version not in VERSIONS:
        raise BadReview(f'AdmissionReview: apiVersion: "{review.api_version}" is not one of {", ".join(VERSIONS)}')
    if review.request is None:
        raise BadReview("AdmissionReview: request is missing")
    if not review.request.uid:
        raise BadReview("AdmissionReview: request.uid is missing")
    return review.api_version, review.request


def uid_of_head(head: bytes) -> str:
    """The uid of a review that cannot be read as a whole, from its first HEAD_BYTES; empty without one.

    The API server treats an answer without this uid as a failed call, and with failurePolicy Ignore it stores the
    object. The author of the object must not be able to cause that by its size or shape.
    """
    match = _UID.search(head[:HEAD_BYTES])
    return "" if match is None else match[1].decode()


def write_review(version: str, uid: str, response: Response) -> bytes:
    """The AdmissionReview with the response."""
    body: dict[str, Any] = {"uid": uid, "allowed": not isinstance(response, DenyResponse)}
    match response:
        case AllowResponse(message=message):
            body["status"] = {"metadata": {}, "code": 200} | ({"message": message} if message else {})
        case DenyResponse(message=message, code=code, reason=reason):
            body["status"] = {"metadata": {}, "status": "Failure", "message": message, "code": code}
            if reason:
                body["status"]["reason"] = reason
        case PatchResponse(operations=operations):
            body["patchType"] = "JSONPatch"
            body["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    if response.warnings:
        body["warnings"] = list(response.warnings)
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": version, "response": body})
