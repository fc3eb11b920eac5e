"""An audit event and its line in the log (spec 02 §9.1).

A line is a JSON object: `createdAt` (local time with zone), `type`, `level`, `namespace`, `name`, `container`,
`reason`, `message`, and `details`, which Koordinator does not have. Empty fields are omitted; `level` is always
present, because 0 is the most important level.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

MAX_MESSAGE_CHARS = 16 << 10
"""Longer messages are truncated."""

EventType = Literal["node", "pod", "group", "unknown"]


@dataclass(frozen=True, slots=True)
class About:
    """The subject of an event; see `node`, `pod`, `group`, `unknown`."""

    type: EventType
    namespace: str = ""
    name: str = ""
    container: str = ""


def node() -> About:
    """This node."""
    return About("node")


def pod(namespace: str, name: str, container: str = "") -> About:
    """A pod, or one container of it."""
    return About("pod", namespace, name, container)


def group(name: str) -> About:
    """A cgroup or resctrl group."""
    return About("group", "", name, "")


def unknown(name: str) -> About:
    """Any other subject, by name."""
    return About("unknown", "", name, "")


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A line of the log. Any field may be absent, so that lines of older versions can be read."""

    created_at: str = ""
    type: str = ""
    level: int | msgspec.UnsetType = msgspec.UNSET
    namespace: str = ""
    name: str = ""
    container: str = ""
    reason: str = ""
    message: str = ""
    details: dict[str, Any] = {}


_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder(AuditEvent)


def line(
    seconds: float, level: int, about: About, reason: str, message: str, details: Mapping[str, Any] | None = None
) -> bytes:
    """The line of an event, including the newline; `seconds` since 1970. Never fails: values that JSON cannot represent
    are converted to text."""
    event = AuditEvent(
        created_at=datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone().isoformat(),
        type=about.type,
        level=level,
        namespace=about.namespace,
        name=about.name,
        container=about.container,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARS],
        details=dict(details or {}),
    )
    try:
        return _encoder.encode(event) + b"\n"
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError, RecursionError):
        fields = {
            name: _encodable(getattr(event, name)) for name in ("namespace", "name", "container", "reason", "message")
        }
        texts = {_encodable(str(key)): _encodable(repr(value)) for key, value in event.details.items()}
        return _encoder.encode(msgspec.structs.replace(event, details=texts, **fields)) + b"\n"


def is_event(text: bytes) -> bool:
    """Whether a line of the log is a valid event."""
    try:
        _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
