"""Errors of API access, as types that callers can distinguish.

`ApiError` is an answer of the server (a meta/v1 Status or plain HTTP); `ConnectionFailed` means that there was no
usable answer; `ConfigError` that the configuration is missing or invalid. Messages never contain secrets.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from http import HTTPStatus

from koordlet.api.encoding import wire
from koordlet.api.meta import Status, StatusCause

VERSION_TOO_LARGE = "ResourceVersionTooLarge"
"""Cause of a Status: the requested resourceVersion is newer than the server's."""


class KubeError(Exception):
    """Base class of this package's errors."""


class ConfigError(KubeError):
    """An invalid kubeconfig or in-cluster environment; names file and field."""


class ConnectionFailed(KubeError):
    """No usable answer: refused, reset, timed out, TLS. The cause is chained."""


class AnswerTooLong(ConnectionFailed):
    """The body of the answer is longer than it may be."""


class ApiError(KubeError):
    """The API server answered with an error.

    status: HTTP code. reason: machine-readable reason of the Status (`NotFound`, `Expired`, …) or "".
    message: the server's text. retry_after: seconds to wait according to the server, or None.
    details: the whole Status, if there was one.
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
        """Whether the Status has a cause with this reason."""
        return any(cause.reason == reason for cause in self._causes)

    @property
    def _causes(self) -> list[StatusCause]:
        return self.details.details.causes if self.details and self.details.details else []


class BadRequest(ApiError):
    """400."""


class Unauthorized(ApiError):
    """401: the credentials are not, or no longer, valid."""


class Forbidden(ApiError):
    """403."""


class NotFound(ApiError):
    """404: the object or the resource does not exist."""


class Conflict(ApiError):
    """409: changed meanwhile, already exists, or a field is owned by another manager (server-side apply)."""

    @property
    def already_exists(self) -> bool:
        return self.reason == "AlreadyExists"


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object violates its schema."""


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
    """The error for a Status object; `code` is the HTTP code if it was a response."""
    code = code or status.code or 500
    if retry_after is None and status.details is not None and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    kind = _KINDS.get(code, ServerError if code >= 500 else ApiError)
    return kind(code, status.reason, status.message, retry_after, status, request)


def from_response(code: int, headers: Mapping[str, str], body: bytes, *, now: float, request: str = "") -> ApiError:
    """The error for an unsuccessful HTTP response. `now`: wall time, for Retry-After dates."""
    retry_after = parse_retry_after(headers.get("retry-after"), now)
    try:
        status: Status = wire.decode(body, Status)
    except wire.WireError:  # a proxy's page, plain text or an empty body: keep the readable part
        status = Status()
    if status.kind != "Status" or not (status.message or status.reason):
        text = body[:200].decode("utf-8", "replace").strip()
        status = Status(code=code, message=text if text and not text.startswith("<") else _phrase(code))
    return from_status(status, code=code, retry_after=retry_after, request=request)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date); None if absent or malformed."""
    if not value:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "unknown status"
