"""WATCH: a stream of the committed events of one kind, starting at any version in the history.

Each watcher is a position in the store's log, not a queue: a slow client costs no memory. When the log has been
compacted past its position, it gets 410 Expired and lists again. Selectors are applied to the state before and after a
change, so that an object leaving the selection appears as DELETED. Bookmarks send the newest version to idle clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from control.standalone import errors
from control.standalone.http.lists import ListOptions, resource_version
from control.standalone.http.render import Renderer, status_event
from control.standalone.http.responses import encode
from control.standalone.registry import ObjectRegistry
from control.standalone.selectors import Matcher
from control.standalone.store import Compacted
from control.standalone.versions import Entry, StoreEvent

INITIAL_END = {"k8s.io/initial-events-end": "true"}
CHUNK_BYTES = 64 * 1024
"""Bytes rendered and written at once: the memory that a watcher which doesn't read costs."""
MIN_TIMEOUT_SECONDS = 1800.0
"""A watch without timeoutSeconds ends after a random time between this and twice this, so that not all end at once."""


@dataclass(slots=True)
class WatchConfig:
    bookmark_period: float = 60.0
    stopping: bool = False  # the server stops: all watches end cleanly


def visible(event: StoreEvent, ns: str | None, matcher: Matcher | None) -> tuple[str, Entry] | None:
    """(type, entry) of `event` for a watcher with this selection; None when the watcher doesn't get it."""
    entry = event.entry
    if ns is not None and entry.address[0] != ns:
        return None
    if matcher is None:
        return event.type, entry
    matched_before = event.prev is not None and matcher(event.prev.obj)
    matches = event.type != "DELETED" and matcher(entry.obj)
    if matches:
        return ("MODIFIED" if matched_before else "ADDED"), entry
    if not matched_before:
        return None
    if event.type == "DELETED":
        return "DELETED", entry
    assert event.prev is not None
    return "DELETED", _renumbered(event.prev, event.rv)


def _renumbered(prev: Entry, rv: int) -> Entry:
    """The last state that the watcher got, with the version at which the object left its selection."""
    obj = prev.copy()
    obj["metadata"]["resourceVersion"] = str(rv)
    return Entry(obj, encode(obj), rv, prev.address)


async def stream(
    registry: ObjectRegistry, renderer: Renderer, ns: str | None, options: ListOptions, config: WatchConfig
) -> AsyncIterator[bytes]:
    """Bytes of the watch, one or more whole lines at a time; ends at the timeout or when the server stops."""
    store, key = registry.store, renderer.kind.stored_as
    timeout = options.timeout or MIN_TIMEOUT_SECONDS * (1 + random.random())
    deadline = time.monotonic() + timeout
    header = True
    store.commit()
    rv = resource_version(options.rv)
    initial = options.send_initial
    if initial is None:
        initial = rv == 0
    if rv > store.revision:
        # A version from before this server lost its history: the client has to list again.
        yield status_event(errors.too_old(rv, store.revision).to_status())
        return
    if initial:
        present, rv = store.entries(key, ns), store.revision  # without an await in between: a consistent snapshot
        for chunk in _chunks(_initial(registry, renderer, present, options.matcher)):
            header = False
            yield chunk
        del present
        if options.send_initial and options.bookmarks:
            yield renderer.bookmark(rv, INITIAL_END, header=header)
            header = False
    elif rv == 0:
        rv = store.revision
    next_bookmark = time.monotonic() + config.bookmark_period * (0.5 + random.random() / 2)
    while not config.stopping:
        try:
            events = store.since(key, rv)
        except Compacted as error:
            yield status_event(errors.too_old(rv, error.oldest).to_status())
            return
        if events:
            for chunk in _chunks(_changes(registry, renderer, ns, options.matcher, events, header)):
                header = False
                yield chunk
            rv = events[-1].rv
            continue
        if registry.kinds.get(renderer.kind.key) is None:
            return  # the CRD was deleted, and the DELETED events of its objects have been sent
        rv = store.revision  # there are no events of this kind up to here
        now = time.monotonic()
        if now >= deadline:
            break
        if options.bookmarks and now >= next_bookmark:
            yield renderer.bookmark(rv, header=header)
            header = False
            next_bookmark = time.monotonic() + config.bookmark_period
            continue
        wake_at = min(deadline, next_bookmark) if options.bookmarks else deadline
        await store.wait(key, max(0.0, wake_at - now))
    if options.bookmarks and not config.stopping:
        yield renderer.bookmark(rv, header=header)


def _initial(
    registry: ObjectRegistry, renderer: Renderer, present: list[Entry], matcher: Matcher | None
) -> Iterator[bytes]:
    """ADDED events for the present objects."""
    now, header = registry.now(), True
    for entry in present:
        if matcher is None or matcher(entry.obj):
            yield renderer.event("ADDED", entry, now, header=header)
            header = False


def _changes(
    registry: ObjectRegistry,
    renderer: Renderer,
    ns: str | None,
    matcher: Matcher | None,
    events: list[StoreEvent],
    header: bool,
) -> Iterator[bytes]:
    """The watch lines of these events."""
    now = registry.now()
    for event in events:
        visible_event = visible(event, ns, matcher)
        if visible_event is not None:
            yield renderer.event(*visible_event, now, header=header)
            header = False


def _chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines joined to chunks of about CHUNK_BYTES, each made after the client has received the previous one."""
    buffered: list[bytes] = []
    size = 0
    for line in lines:
        buffered.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
    if buffered:
        yield buffered[0] if len(buffered) == 1 else b"".join(buffered)


async def stop_all(registry: ObjectRegistry, config: WatchConfig) -> None:
    """End every watch cleanly."""
    config.stopping = True
    for kind in registry.kinds:
        registry.store.wake(kind.stored_as)
    await asyncio.sleep(0)
