"""Errors of the API server, each of which is a Kubernetes `Status` object on the wire.

Reasons and wording are those that kubectl and client libraries know and sometimes match. The registry, admission and
the schemas raise them; only `http` turns them into responses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

REASON_CODES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAcceptable": 406,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Gone": 410,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One problem of one field, `path: kind of problem: detail`, like Kubernetes' field.Error."""

    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueForbidden …
    path: str
    message: str  # without the path, e.g. 'Required value' or 'Invalid value: "x": must be …'

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(eq=False)
class StatusError(Exception):
    """An API failure: HTTP code, machine-readable reason, human message, optional details and retry hint."""

    code: int
    reason: str
    message: str
    details: Json = field(default_factory=dict)
    retry_after: int | None = None
    generic: bool = False  # not about an object: `details` is on the wire even when it is empty

    def __str__(self) -> str:
        return self.message

    def to_status(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details)
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details or self.generic:
            status["details"] = details
        status["code"] = self.code
        return status


def qualified(group: str, plural: str) -> str:
    """`deployments.apps`; in the core group `pods`."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, kind: str, name: str) -> Json:
    details: Json = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def of_reason(reason: str, message: str, details: Json | None = None) -> StatusError:
    return StatusError(REASON_CODES[reason], reason, message, details or {})


def bad_request(message: str) -> StatusError:
    return of_reason("BadRequest", message)


def unauthorized() -> StatusError:
    return of_reason("Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str) -> StatusError:
    head = qualified(group, plural)
    head = f'{head} "{name}" is forbidden' if name else f"{head} is forbidden"
    return of_reason("Forbidden", f"{head}: {why}", _details(group, plural, name))


def not_found(group: str, plural: str, name: str) -> StatusError:
    message = f'{qualified(group, plural)} "{name}" not found'
    return of_reason("NotFound", message, _details(group, plural, name))


def generic(reason: str, message: str) -> StatusError:
    """An error that is not about an object; its `details` are on the wire, empty."""
    return StatusError(REASON_CODES[reason], reason, message, generic=True)


def no_such_resource() -> StatusError:
    return generic("NotFound", "the server could not find the requested resource")


def method_not_allowed() -> StatusError:
    return generic("MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(group: str, plural: str, name: str) -> StatusError:
    message = f'{qualified(group, plural)} "{name}" already exists'
    return of_reason("AlreadyExists", message, _details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return of_reason("Conflict", message, _details(group, plural, name))


def invalid(group: str, kind: str, name: str, causes: Iterable[FieldError]) -> StatusError:
    """422 with one cause per field, e.g. `Pod "x" is invalid: spec.containers: Required value`."""
    unique = list(dict.fromkeys(causes))
    texts = [str(c) for c in unique]
    body = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(group, kind, name)
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.path} for c in unique]
    return of_reason("Invalid", f'{qualified(group, kind)} "{name}" is invalid: {body}', details)


def too_large_object(group: str, plural: str, name: str, why: str) -> StatusError:
    """The body may be sent but not stored. The wording is etcd's, which clients know, plus the sizes."""
    message = f'{qualified(group, plural)} "{name}": request is too large: {why}'
    return of_reason("RequestEntityTooLarge", message, _details(group, plural, name))


def expired(message: str) -> StatusError:
    return of_reason("Expired", message)


def too_old(requested: int, oldest: int) -> StatusError:
    return expired(f"too old resource version: {requested} ({oldest})")


def too_large(requested: int, current: int) -> StatusError:
    """The client knows a newer state than this server; it should try again in a second."""
    error = of_reason("Timeout", f"Timeout: Too large resource version: {requested}, current: {current}")
    error.details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    error.retry_after = 1
    return error


def too_many_requests(message: str, retry_after: int | None, causes: list[Json] | None = None) -> StatusError:
    error = of_reason("TooManyRequests", message, {"causes": causes} if causes else {})
    error.retry_after = retry_after
    return error


def internal(message: str) -> StatusError:
    return of_reason("InternalError", f"Internal error occurred: {message}")


def not_acceptable(accepted: str) -> StatusError:
    return of_reason("NotAcceptable", f"only the following media types are accepted: {accepted}")


def unsupported_media_type(accepted: str) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return of_reason("UnsupportedMediaType", message)
