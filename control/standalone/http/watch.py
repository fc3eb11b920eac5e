"""WATCH: a stream of the committed events of one kind, from any kept version on.

Each watcher is a cursor into the store's log, not a queue: a slow client costs no memory, and when the log is
compacted past its cursor it gets 410 Expired and lists again. Selectors are applied to both sides of a change,
so that an object leaving the selection appears as DELETED. Bookmarks tell idle clients how far they are.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from control.standalone import errors
from control.standalone.http.lists import ListOptions
from control.standalone.http.render import Renderer, status_event
from control.standalone.http.responses import encode
from control.standalone.registry import ObjectRegistry
from control.standalone.selectors import Matcher
from control.standalone.store import Compacted
from control.standalone.versions import Entry, StoreEvent

INITIAL_END = {"k8s.io/initial-events-end": "true"}
CHUNK = 64 * 1024  # bytes made and written at once: what a watcher that doesn't read costs
MIN_TIMEOUT = 1800.0  # seconds a watch without timeoutSeconds lives; up to twice that, so that they don't end together


@dataclass(slots=True)
class WatchConfig:
    bookmark_period: float = 60.0
    stopping: bool = False  # the server ends: finish all watches cleanly


def visible(event: StoreEvent, ns: str | None, matcher: Matcher | None) -> tuple[str, Entry] | None:
    """What a watcher with this selection sees of `event`: (type, entry), or None."""
    entry = event.entry
    if ns is not None and entry.address[0] != ns:
        return None
    if matcher is None:
        return event.type, entry
    was = event.prev is not None and matcher(event.prev.obj)
    matches = event.type != "DELETED" and matcher(entry.obj)
    if matches:
        return ("MODIFIED" if was else "ADDED"), entry
    if not was:
        return None
    if event.type == "DELETED":
        return "DELETED", entry
    assert event.prev is not None
    return "DELETED", _renumbered(event.prev, event.rv)


def _renumbered(prev: Entry, rv: int) -> Entry:
    """The last state a watcher knew, under the version in which the object left its selection."""
    obj = prev.copy()
    obj["metadata"]["resourceVersion"] = str(rv)
    return Entry(obj, encode(obj), rv, prev.address)


async def stream(
    registry: ObjectRegistry, renderer: Renderer, ns: str | None, options: ListOptions, config: WatchConfig
) -> AsyncIterator[bytes]:
    """Bytes of the watch, one or more whole lines at a time; ends at the timeout or when the server stops."""
    store, key = registry.store, renderer.kind.stored_as
    timeout = options.timeout or MIN_TIMEOUT * (1 + random.random())
    deadline = time.monotonic() + timeout
    header = True
    store.commit()
    rv = int(options.rv or 0)
    initial = options.send_initial
    if initial is None:
        initial = rv == 0
    if rv > store.revision:
        # A version we don't know: our history was lost. Listing again is what heals the client.
        yield status_event(errors.too_old(rv, store.revision).to_status())
        return
    if initial:
        present, rv = store.entries(key, ns), store.revision  # one moment; entries never change
        for chunk in _chunks(_initial(registry, renderer, present, options.matcher)):
            header = False
            yield chunk
        del present
        if options.send_initial and options.bookmarks:
            yield renderer.bookmark(rv, INITIAL_END, header=header)
            header = False
    elif rv == 0:
        rv = store.revision
    marked = time.monotonic() + config.bookmark_period * (0.5 + random.random() / 2)
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
            return  # the CRD is gone, and its objects' DELETED events were sent
        rv = store.revision  # nothing of this kind lies between
        now = time.monotonic()
        if now >= deadline:
            break
        if options.bookmarks and now >= marked:
            yield renderer.bookmark(rv, header=header)
            header = False
            marked = time.monotonic() + config.bookmark_period
            continue
        wake_at = min(deadline, marked) if options.bookmarks else deadline
        await store.wait(key, max(0.0, wake_at - now))
    if options.bookmarks and not config.stopping:
        yield renderer.bookmark(rv, header=header)


def _initial(
    registry: ObjectRegistry, renderer: Renderer, present: list[Entry], matcher: Matcher | None
) -> Iterator[bytes]:
    """ADDED for every present object."""
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
    """What the watcher sees of these events."""
    now = registry.now()
    for event in events:
        seen = visible(event, ns, matcher)
        if seen is not None:
            yield renderer.event(*seen, now, header=header)
            header = False


def _chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines joined to pieces of about CHUNK bytes, each made when the client has taken the one before."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)


async def stop_all(registry: ObjectRegistry, config: WatchConfig) -> None:
    """Let every watch end cleanly."""
    config.stopping = True
    for kind in registry.kinds:
        registry.store.wake(kind.stored_as)
    await asyncio.sleep(0)
