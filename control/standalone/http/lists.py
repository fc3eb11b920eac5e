"""LIST: selection, consistency by resourceVersion, and paging with continue tokens.

All pages of one list show the state at the version in the continue token. When that version has been compacted, the
response is 410 with a token to continue at the newest state (inconsistently), as in Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from control.standalone import errors
from control.standalone.errors import FieldError
from control.standalone.kinds import ResourceKind
from control.standalone.registry import ObjectRegistry
from control.standalone.selectors import Matcher, compile_matcher
from control.standalone.store import Compacted
from control.standalone.versions import Entry

Json = dict[str, Any]
RV_MATCHES = ("Exact", "NotOlderThan")
MAX_VERSION_DIGITS = 20  # of the largest 64-bit number
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The validated query parameters of list and watch."""

    matcher: Matcher | None
    limit: int
    token: str
    rv: str
    rv_match: str
    timeout: float | None
    bookmarks: bool
    send_initial: bool | None

    @staticmethod
    def parse(kind: ResourceKind, query: Mapping[str, str], *, name: str, watching: bool = False) -> ListOptions:
        """`name`: the request is authorized for objects of this name only."""
        fields = query.get("fieldSelector", "")
        matcher = compile_matcher(kind, query.get("labelSelector"), fields, name)
        rv, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        token = query.get("continue", "")
        initial = query.get("sendInitialEvents")
        problems = []
        resource_version(rv)
        if match:
            if match not in RV_MATCHES:
                problems.append(
                    _forbidden(
                        "FieldValueNotSupported",
                        f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""',
                    )
                )
            elif watching and initial is None:
                problems.append(
                    _forbidden(
                        "FieldValueForbidden",
                        "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                    )
                )
            elif not rv and not watching:
                problems.append(
                    _forbidden(
                        "FieldValueForbidden",
                        "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                    )
                )
            elif token:
                problems.append(
                    _forbidden(
                        "FieldValueForbidden", "Forbidden: resourceVersionMatch is forbidden when continue is provided"
                    )
                )
            elif match == "Exact" and rv == "0":
                problems.append(
                    _forbidden(
                        "FieldValueForbidden",
                        'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
                    )
                )
        if initial is not None:
            if not watching:
                problems.append(
                    FieldError(
                        "FieldValueForbidden", "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"
                    )
                )
            elif match != "NotOlderThan":
                problems.append(
                    _forbidden(
                        "FieldValueForbidden",
                        "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                    )
                )
        if problems:
            raise errors.invalid("meta.k8s.io", "ListOptions", "", problems)
        return ListOptions(
            matcher,
            max(0, _integer(query, "limit")),
            token,
            rv,
            match,
            float(_integer(query, "timeoutSeconds")) or None,
            query.get("allowWatchBookmarks", "").lower() in ("1", "true"),
            None if initial is None else initial.lower() in ("1", "true"),
        )  # fmt: skip


def _forbidden(reason: str, text: str) -> FieldError:
    return FieldError(reason, "resourceVersionMatch", text)


def _integer(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    try:
        return int(text) if text else 0
    except ValueError as error:
        raise errors.bad_request(f'unable to decode query parameter {name}: invalid value "{text}"') from error


def select(
    registry: ObjectRegistry, kind: ResourceKind, ns: str | None, options: ListOptions
) -> tuple[list[Entry], Json]:
    """The entries of one page and its list metadata. Raises StatusError 400, 410, 504."""
    store = registry.store
    store.commit()  # listed objects must be durable and not newer than the list's version
    rv, start = _start(options, store.revision)
    consistent = rv is None or rv >= 0
    try:
        entries = store.entries(kind.stored_as, ns, rv if rv is not None and rv >= 0 else None)
    except Compacted as error:
        expired = errors.expired(
            _TOO_OLD if options.token else f"The resourceVersion for the provided list is too old: {rv}"
        )
        if options.token and start is not None:
            expired.details = {}
            raise ExpiredList(expired, _token(-1, start)) from error
        raise expired from error
    list_rv = rv if rv is not None and rv >= 0 else store.revision
    if start is not None:
        entries = entries[bisect_right(entries, start, key=lambda e: e.address) :]
    meta: Json = {"resourceVersion": str(list_rv)}
    if options.limit and not consistent:
        list_rv = store.revision
    page: list[Entry] = []
    for i, entry in enumerate(entries):
        if options.matcher is not None and not options.matcher(entry.obj):
            continue
        if options.limit and len(page) == options.limit:
            # Another object matches, so there is a next page; it starts after the last one of this page.
            meta["continue"] = _token(list_rv, page[-1].address)
            if options.matcher is None:
                meta["remainingItemCount"] = len(entries) - i
            break
        page.append(entry)
    return page, meta


class ExpiredList(errors.StatusError):
    """410 with a token to continue the list inconsistently."""

    def __init__(self, base: errors.StatusError, token: str) -> None:
        super().__init__(base.code, base.reason, base.message)
        self.token = token

    def to_status(self) -> Json:
        status = super().to_status()
        status["metadata"] = {"continue": self.token}
        return status


def _start(options: ListOptions, current: int) -> tuple[int | None, tuple[str, str] | None]:
    """(version to list at, address to start after). Version None: newest; -1: newest, of an inconsistent list."""
    if options.token:
        if options.rv not in ("", "0"):
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        rv, start = _parse_token(options.token)
        if rv > current:
            raise errors.bad_request("continue key is not valid: it names a version of the future")
        return rv, start
    rv = resource_version(options.rv)
    if rv > current:
        raise errors.too_large(rv, current)
    exact = options.rv_match == "Exact" or (options.rv_match == "" and options.limit and rv > 0)
    return (rv if exact else None), None


def resource_version(text: str) -> int:
    """The number of a resourceVersion parameter, 0 for an empty one; raises StatusError 400."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_VERSION_DIGITS):
        raise errors.bad_request(f'invalid resource version "{text[:64]}": must be a number')
    return int(text)


def _token(rv: int, start: tuple[str, str]) -> str:
    raw = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": rv, "start": list(start)})
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _parse_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        data = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        ns, name = data["start"]
        rv = data["rv"]
        if data["v"] != "meta.k8s.io/v1" or not isinstance(rv, int):
            raise ValueError(f"version {data['v']!r}")
        return rv, (str(ns), str(name))
    except (binascii.Error, msgspec.DecodeError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
