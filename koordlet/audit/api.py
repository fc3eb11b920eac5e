"""`GET /events`: the audit log in pages, newest first (spec 02 §9.2).

`?size=` sets the events per page. A page that is not the last has a token, and `?pageToken=` returns the next page of
the log as it was at the first request. A token is valid for ten minutes after its last use; if there are too many
readers, the oldest token becomes invalid. The answer is text by default (one JSON event per line, header
`Next-Page-Token`), JSON if `Accept` prefers it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
from aiohttp import web

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.audit.events import is_event
from koordlet.audit.reverse import ReverseLog

DEFAULT_PAGE_SIZE = 256
READER_IDLE_TIMEOUT_S = 600.0
SWEEP_PERIOD_S = 60.0
_MAX_EXPIRED_TOKENS = 64
"""Tokens of closed readers for which the error is `expired` instead of `invalid`."""
_NUMBER = re.compile(r"^[+-]?\d{1,18}$", re.ASCII)


class SizeError(ValueError):
    """An invalid page size."""


class PageTokenError(LookupError):
    """An unknown or expired page token."""


@dataclass(slots=True)
class _Reader:
    lines: ReverseLog
    last_used: float


@dataclass(frozen=True, slots=True)
class EventPage:
    """Lines of events, and the token of the next page; the token is empty at the end of the log."""

    events: list[bytes]
    token: str


class Readers:
    """The readers of one log: at most `limit`; a new one closes the oldest, and `sweep` closes idle ones."""

    def __init__(self, directory: Path, limit: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory = directory
        self._limit = max(1, limit)
        self._clock = clock
        self._readers: dict[str, _Reader] = {}
        self._closed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def open(self) -> str:
        """Open a reader that begins at the newest event; returns its token."""
        self.sweep()
        while len(self._readers) >= self._limit:
            self._close(next(iter(self._readers)))
        token = str(uuid.uuid4())
        self._readers[token] = _Reader(ReverseLog(self._directory), self._clock.monotonic())
        return token

    def page(self, token: str, size: int) -> EventPage:
        """The next `size` lines of a reader. Malformed lines count but are omitted. Raises PageTokenError."""
        reader = self._readers.get(token)
        if reader is None:
            expired = token in self._closed
            raise PageTokenError(f"reader {token} is expired" if expired else f'invalid pageToken "{token}"')
        reader.last_used = self._clock.monotonic()
        lines = list(islice(reader.lines, size))
        more = size == 0 or len(lines) == size
        if not more:
            self._close(token)
        return EventPage([line for line in lines if is_event(line)], token if more else "")

    def sweep(self) -> None:
        """Close readers that were not used for `READER_IDLE_TIMEOUT_S`."""
        deadline = self._clock.monotonic() - READER_IDLE_TIMEOUT_S
        for token in [token for token, reader in self._readers.items() if reader.last_used < deadline]:
            self._close(token)

    def close(self) -> None:
        """Close all readers."""
        for token in list(self._readers):
            self._close(token)

    def _close(self, token: str) -> None:
        self._readers.pop(token).lines.close()
        self._closed[token] = None
        if len(self._closed) > _MAX_EXPIRED_TOKENS:
            del self._closed[next(iter(self._closed))]


def page_size(text: str | None, limit: int) -> int:
    """The `size` of a query; the default if absent or not a number. Raises SizeError if negative or above `limit`."""
    if text is None or not _NUMBER.match(text):
        return min(DEFAULT_PAGE_SIZE, limit)
    size = int(text)
    if size > limit:
        raise SizeError(f"size({size}) exceeds the limit({limit})")
    if size < 0:
        raise SizeError(f"size({size}) is negative")
    return size


def wants_json(accept: list[str]) -> bool:
    """Whether these `Accept` headers prefer JSON to text; wildcards mean text."""
    weights = {"application/json": 0.0, "text/plain": 0.0}
    for part in ",".join(accept).split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if media in weights:
            weights[media] = max(weights[media], _weight(parameters))
    return weights["application/json"] > 0 and weights["application/json"] >= weights["text/plain"]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def events_handler(
    readers: Readers, flush: Callable[[], None], limit: int
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Returns the handler of /events; `flush` writes pending events to the log before a first page."""

    async def handle(request: web.Request) -> web.Response:
        try:
            size = page_size(request.query.get("size"), limit)
            token = request.query.get("pageToken")
            if not token:
                flush()
                token = readers.open()
            page = readers.page(token, size)
        except SizeError as error:
            return web.Response(status=400, text=f"{error}\n")
        except PageTokenError as error:
            return web.Response(status=409, text=f"{error.args[0]}\n")
        if wants_json(request.headers.getall("Accept", [])):
            answer = {"NextPageToken": page.token, "Events": [msgspec.Raw(event) for event in page.events]}
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json", charset="utf-8")
        headers = {"Next-Page-Token": page.token} if page.token else {}
        return web.Response(text=b"".join(event + b"\n" for event in page.events).decode(), headers=headers)

    return handle


async def no_events(_: web.Request) -> web.Response:
    """Handler of /events if auditing is off: an empty answer with status 200."""
    return web.Response()
