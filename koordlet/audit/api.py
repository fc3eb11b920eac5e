"""`GET /events`: the audit log in pages, newest first (spec 02 §9.2).

`?size=` events a page; a page that is not the last one carries a token, and `?pageToken=` continues where it ended,
over the log as it was when the first page was asked for. A token is good for ten minutes after its last use and for the
newest few readers only. Text by default (one JSON event a line, header `Next-Page-Token`), JSON where `Accept` says so.
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

DEFAULT_SIZE = 256
IDLE_SECONDS = 600.0
SWEEP_SECONDS = 60.0
_REMEMBERED = 64
"""Tokens of closed readers that are told as expired instead of invalid."""
_NUMBER = re.compile(r"^[+-]?\d{1,18}$", re.ASCII)


class SizeError(ValueError):
    """A page size that cannot be served."""


class TokenError(LookupError):
    """A page token of no reader, or of one that is closed."""


@dataclass(slots=True)
class _Reader:
    lines: ReverseLog
    used: float


@dataclass(frozen=True, slots=True)
class Page:
    """Lines of events, and the token for more of them; an empty one when the log has ended."""

    events: list[bytes]
    token: str


class Readers:
    """The readers of one log: at most `limit`, the oldest gives way, idle ones are closed by `sweep`."""

    def __init__(self, directory: Path, limit: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory, self._limit, self._clock = directory, max(1, limit), clock
        self._readers: dict[str, _Reader] = {}
        self._closed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def open(self) -> str:
        """A new reader that begins at the newest event; its token."""
        self.sweep()
        while len(self._readers) >= self._limit:
            self._close(next(iter(self._readers)))
        token = str(uuid.uuid4())
        self._readers[token] = _Reader(ReverseLog(self._directory), self._clock.monotonic())
        return token

    def page(self, token: str, size: int) -> Page:
        """The next `size` lines of a reader; malformed ones count and are left out. Raises TokenError."""
        reader = self._readers.get(token)
        if reader is None:
            raise TokenError(f"reader {token} is expired" if token in self._closed else f'invalid pageToken "{token}"')
        reader.used = self._clock.monotonic()
        lines = list(islice(reader.lines, size))
        more = size == 0 or len(lines) == size
        if not more:
            self._close(token)
        return Page([line for line in lines if is_event(line)], token if more else "")

    def sweep(self) -> None:
        """Close readers that nobody used for ten minutes."""
        now = self._clock.monotonic()
        for token in [token for token, reader in self._readers.items() if now - reader.used > IDLE_SECONDS]:
            self._close(token)

    def close(self) -> None:
        """Close all of them."""
        for token in list(self._readers):
            self._close(token)

    def _close(self, token: str) -> None:
        self._readers.pop(token).lines.close()
        self._closed[token] = None
        if len(self._closed) > _REMEMBERED:
            del self._closed[next(iter(self._closed))]


def page_size(text: str | None, limit: int) -> int:
    """The `size` of a query: the default when it is absent or no number; SizeError when negative or over `limit`."""
    if text is None or not _NUMBER.match(text):
        return min(DEFAULT_SIZE, limit)
    size = int(text)
    if size > limit:
        raise SizeError(f"size({size}) exceeds the limit({limit})")
    if size < 0:
        raise SizeError(f"size({size}) is negative")
    return size


def wants_json(accept: list[str]) -> bool:
    """Whether these `Accept` headers prefer JSON to text; wildcards leave it at text."""
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
    """Answers /events; `flush` brings waiting events to the log before a first page."""

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
        except TokenError as error:
            return web.Response(status=409, text=f"{error.args[0]}\n")
        if wants_json(request.headers.getall("Accept", [])):
            answer = {"NextPageToken": page.token, "Events": [msgspec.Raw(event) for event in page.events]}
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json", charset="utf-8")
        headers = {"Next-Page-Token": page.token} if page.token else {}
        return web.Response(text=b"".join(event + b"\n" for event in page.events).decode(), headers=headers)

    return handle


async def no_events(_: web.Request) -> web.Response:
    """Answers /events while nothing is audited: 200 and nothing."""
    return web.Response()
