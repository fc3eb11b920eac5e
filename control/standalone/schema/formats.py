"""String formats of schemas; unknown formats are accepted, as in Kubernetes."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, datetime
from urllib.parse import urlsplit

_DATE_TIME = re.compile(r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$")
_DURATION = re.compile(r"^[+-]?(?:0|(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)$")
_DURATION_WITH_UNIT_NAMES = re.compile(
    r"^\s*(?:\d+\s*(?:ns|nanos?|us|µs|micros?|ms|millis?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|"
    r"d|days?|w|weeks?)\s*)+$"
)
_UUID = re.compile(r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$")
_EMAIL = re.compile(r"^[^@\s<>]+@[^@\s<>]+$")
_HOSTNAME = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
                       r"(\.[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?)*\.?$")  # fmt: skip
_MAC = re.compile(r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$")


def _date_time(text: str) -> bool:
    if not _DATE_TIME.match(text):
        return False
    # Leap seconds are valid, and fractions may have more digits than Python accepts.
    datetime.fromisoformat(re.sub(r"\.\d+", "", text).upper().replace(":60", ":59"))
    return True


def _date(text: str) -> bool:
    return len(text) == 10 and bool(date.fromisoformat(text))


def _duration(text: str) -> bool:
    return bool(_DURATION.match(text) or _DURATION_WITH_UNIT_NAMES.match(text))


def _byte(text: str) -> bool:
    base64.b64decode(text, validate=True)
    return True


def _uri(text: str) -> bool:
    parts = urlsplit(text)
    return bool(parts.scheme) or text.startswith("/")


_CHECKS: dict[str, Callable[[str], object]] = {
    "date-time": _date_time,
    "datetime": _date_time,
    "date": _date,
    "duration": _duration,
    "byte": _byte,
    "uri": _uri,
    "uuid": _UUID.match,
    "email": _EMAIL.match,
    "hostname": _HOSTNAME.match,
    "mac": _MAC.match,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "cidr": lambda text: "/" in text and ipaddress.ip_network(text, strict=False),
}


def conforms(text: str, name: str) -> bool:
    """Whether `text` has the format `name`."""
    check = _CHECKS.get(name)
    if check is None:
        return True
    try:
        return bool(check(text))
    except (ValueError, binascii.Error):
        return False
