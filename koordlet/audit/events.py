"""One audited event and its line in the log (spec 02 §9.1).

A line is one JSON object: `createdAt` (local time with zone), `type`, `level`, `namespace`, `name`, `container`,
`reason`, `message`, and our `details`. Empty fields are left out; `level` is always there, as 0 matters most.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

MAX_MESSAGE = 16 << 10
"""Characters of a message that are kept."""

EventType = Literal["node", "pod", "group", "unknown"]


@dataclass(frozen=True, slots=True)
class About:
    """What an event is about; see `node`, `pod`, `group`, `unknown`."""

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


def group(name: str, container: str = "") -> About:
    """A cgroup or resctrl group."""
    return About("group", "", name, container)


def unknown(name: str, container: str = "") -> About:
    """Anything else, by its name."""
    return About("unknown", "", name, container)


class Event(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A line of the log. Readers take older lines too: every field may be absent."""

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
_decoder = msgspec.json.Decoder(Event)


def line(
    seconds: float, level: int, about: About, reason: str, message: str, details: Mapping[str, Any] | None = None
) -> bytes:
    """The event as it goes into the log, newline included; `seconds` since 1970. Never fails: what JSON cannot say is
    said as text."""
    event = Event(
        created_at=datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone().isoformat(),
        type=about.type,
        level=level,
        namespace=about.namespace,
        name=about.name,
        container=about.container,
        reason=reason,
        message=message[:MAX_MESSAGE],
        details=dict(details or {}),
    )
    try:
        return _encoder.encode(event) + b"\n"
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError, RecursionError):
        plain = {
            name: _sayable(getattr(event, name)) for name in ("namespace", "name", "container", "reason", "message")
        }
        said = {_sayable(str(key)): _sayable(repr(value)) for key, value in event.details.items()}
        return _encoder.encode(msgspec.structs.replace(event, details=said, **plain)) + b"\n"


def is_event(text: bytes) -> bool:
    """Whether a line of the log can be read as an event."""
    try:
        _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _sayable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
