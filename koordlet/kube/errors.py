"""What can go wrong between us and the API server, as types that callers can tell apart.

`ApiError` is an answer of the server (a meta/v1 Status or bare HTTP); `ConnectionFailed` means there was no
usable answer; `ConfigError` that there is nothing to connect to. Secrets never appear in messages.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from http import HTTPStatus

from koordlet.api.encoding import wire
from koordlet.api.meta import Status, StatusCause

VERSION_TOO_LARGE = "ResourceVersionTooLarge"
"""Cause of a Status: the server has not come as far as the resourceVersion that was asked for."""


class KubeError(Exception):
    """Base of everything this package raises."""


class ConfigError(KubeError):
    """A kubeconfig or in-cluster environment that can't be used; names file and field."""


class ConnectionFailed(KubeError):
    """No usable answer: refused, reset, timed out, TLS. The cause is chained."""


class ApiError(KubeError):
    """The API server refused.

    status: HTTP code. reason: machine-readable word of the Status (`NotFound`, `Expired`, …) or "".
    message: the server's text. retry_after: seconds the server asks to wait, or None.
    details: the whole Status when there was one.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        details: Status | None = None,
        request: str = "",
    ) -> None:
        text = message or reason or _phrase(status)
        super().__init__(f"{request}: {status} {text}" if request else f"{status} {text}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details

    def has_cause(self, reason: str) -> bool:
        """Whether the Status names `reason` among its causes."""
        return any(cause.reason == reason for cause in self._causes)

    @property
    def _causes(self) -> list[StatusCause]:
        return self.details.details.causes if self.details and self.details.details else []


class BadRequest(ApiError):
    """400."""


class Unauthorized(ApiError):
    """401: the credentials are not (or no longer) accepted."""


class Forbidden(ApiError):
    """403."""


class NotFound(ApiError):
    """404: the object or the whole resource is not there."""


class Conflict(ApiError):
    """409: changed meanwhile, exists already, or a field owned by somebody else (server-side apply)."""

    @property
    def already_exists(self) -> bool:
        return self.reason == "AlreadyExists"


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list anew."""


class Invalid(ApiError):
    """422: the object breaks its schema; `fields` names where."""

    @property
    def fields(self) -> list[str]:
        return [cause.field for cause in self._causes]


class TooManyRequests(ApiError):
    """429: rate limited, or an eviction that a disruption budget does not allow now."""


class ServerError(ApiError):
    """5xx."""


_KINDS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(status: Status, *, code: int = 0, retry_after: float | None = None, request: str = "") -> ApiError:
    """The error for a Status object; `code` is the HTTP code when it came as a response."""
    code = code or status.code or 500
    if retry_after is None and status.details is not None and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    kind = _KINDS.get(code, ServerError if code >= 500 else ApiError)
    return kind(code, status.reason, status.message, retry_after, status, request)


def from_response(code: int, headers: Mapping[str, str], body: bytes, *, now: float, request: str = "") -> ApiError:
    """The error for an HTTP response that is not a success. `now`: wall time, for Retry-After dates."""
    retry_after = parse_retry_after(headers.get("Retry-After"), now)
    try:
        status: Status = wire.decode(body, Status)
    except wire.WireError:  # a proxy's page, plain text, or nothing: keep what a person can read of it
        status = Status()
    if status.kind != "Status" or not (status.message or status.reason):
        text = body[:200].decode("utf-8", "replace").strip()
        status = Status(code=code, message=text if text and not text.startswith("<") else _phrase(code))
    return from_status(status, code=code, retry_after=retry_after, request=request)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date); None when absent or malformed."""
    if not value:
        return None
    if value.isdecimal():
        return float(value)
    try:
        at = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - now)


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "unknown status"
