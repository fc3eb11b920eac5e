"""MVCC store of API objects: SQLite (WAL) on disk, dicts in memory, one global resourceVersion.

Every write gets the next resourceVersion and one row `versions(rv, key, ns, name, type, at, body)`. That table holds
both the objects and the watch log: the newest row of a name is its live state, older rows are history. Memory
holds the live objects and, per resource, the events since the last compaction, each with the state before it.
A watch from any kept version therefore replays exactly the difference, and a list is read as of an older version
(paging) by undoing events.

Durability: writes made in one turn of the event loop share one transaction (group commit). It is committed before
any of them is acknowledged and before any watcher sees them. WAL with synchronous=NORMAL loses no acknowledged
write at kill -9; `synchronous="FULL"` also survives power loss, at the cost of one fsync per commit.
A failed commit removes its writes from memory and fails their callers; its versions are not used again.

Bounds: history is limited by age, number and bytes of events (`retention_…`) and kept encoded. Older versions are
compacted; reading them raises `Compacted`. One object takes at most MAX_OBJECT_BYTES, the WAL little more than
WAL_LIMIT_BYTES. Returned objects are shared and READ ONLY; `Entry.copy()` makes a private copy. A store belongs to
one event loop and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from control.standalone.versions import Address, Entry, EventType, Json, ResourceState, StoreEvent

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()

_SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
    rv INTEGER PRIMARY KEY, key TEXT NOT NULL, ns TEXT NOT NULL, name TEXT NOT NULL,
    type TEXT NOT NULL, at REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


MAX_OBJECT_BYTES = 3 << 19
"""Limit of one encoded object (1.5 MiB, as in etcd): every watch and every list transfers it."""
KEEP_DECODED_SECONDS = 5.0
"""Replaced versions stay decoded for this long: every watcher that keeps up reads each of them once."""
WAL_LIMIT_BYTES = 64 << 20
"""Above this size of the WAL `maintain` blocks the loop for a checkpoint that truncates the file."""


class StoreError(Exception):
    """The disk refused a write, or the database is damaged; the message names the file."""


class Compacted(Exception):
    """The requested version is older than the history that is kept."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"version {requested} is compacted, oldest kept is {oldest}")
        self.requested = requested
        self.oldest = oldest


class VersionMismatch(Exception):
    """Compare-and-swap failed: the live object does not have the expected version."""


class TooLarge(Exception):
    """The encoded object is longer than MAX_OBJECT_BYTES."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes, at most {MAX_OBJECT_BYTES} can be stored")


Objects = list[Json]  # `ObjectStore.list` hides the builtin inside the class
Entries = list[Entry]
Events = list[StoreEvent]
Pending = list[tuple[str, StoreEvent]]


class ObjectStore:
    """See the module docstring. `path=None` keeps everything in memory (unit tests)."""

    def __init__(
        self,
        path: Path | None,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        retention_seconds: float = 300.0,
        retention_events: int = 50_000,
        retention_bytes: int = 256 << 20,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._now = now
        self._retention_seconds = retention_seconds
        self._retention_events = retention_events
        self._retention_bytes = retention_bytes
        self._history_bytes = 0
        self._resources: dict[str, ResourceState] = {}
        self._revision = 0
        self._visible = 0
        self._compacted = 0
        self._compacted_before_start = 0  # of which resources the compacted events were is not recorded
        self._pending: Pending = []
        self._commit_done: asyncio.Future[None] | None = None
        self._closed = False
        self._failure: str | None = None  # why the last commit failed, until one succeeds
        try:
            if path is not None:
                _private(path)
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={synchronous}")
            self._db.execute("PRAGMA wal_autocheckpoint=0")  # `maintain` does it in a thread
            self._db.executescript(_SCHEMA)
            self._load()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{path}: cannot open the database: {error}") from error

    @property
    def revision(self) -> int:
        """The newest version that is durable and visible to watchers."""
        return self._visible

    @property
    def compacted(self) -> int:
        """Versions before this one can't be listed; a watch from one works while no later event of its kind is gone."""
        return self._compacted

    def count(self, key: str) -> int:
        resource = self._resources.get(key)
        return len(resource.objects) if resource else 0

    def size_bytes(self) -> int:
        """Bytes on disk: the database and its WAL."""
        return _size(self._path) + self.wal_bytes() if self._path is not None else 0

    def wal_bytes(self) -> int:
        return _size(self._path.with_name(self._path.name + "-wal")) if self._path is not None else 0

    @property
    def healthy(self) -> str | None:
        """None, or why the store takes no writes."""
        return "closed" if self._closed else self._failure

    def entry(self, key: str, ns: str | None, name: str) -> Entry | None:
        resource = self._resources.get(key)
        return resource.objects.get((ns or "", name)) if resource else None

    def get(self, key: str, ns: str | None, name: str) -> Json | None:
        """The live object, shared and read only, or None."""
        entry = self.entry(key, ns, name)
        return entry.obj if entry else None

    def list(self, key: str, ns: str | None = None) -> Objects:
        """Live objects (shared, read only) ordered by namespace and name; ns None means all namespaces."""
        return [e.obj for e in self.entries(key, ns)]

    def entries(self, key: str, ns: str | None = None, rv: int | None = None) -> Entries:
        """Like `list`, as entries; with `rv` as of that version. Raises Compacted."""
        resource = self._resources.get(key)
        if rv is not None and rv < self._compacted:
            raise Compacted(rv, self._compacted)
        if resource is None:
            return []
        objects, order = resource.objects, resource.order
        if rv is not None:
            since = resource.log[bisect_right(resource.log_rvs, rv) :]
            if since:
                objects = dict(objects)
                for event in reversed(since):
                    if event.prev is None:
                        objects.pop(event.entry.address, None)
                    else:
                        objects[event.entry.address] = event.prev
                order = sorted(objects)
        if ns is None:
            return [objects[a] for a in order]
        lo, hi = bisect_right(order, (ns, "")), bisect_right(order, (ns, "\U0010ffff"))
        return [objects[a] for a in order[lo:hi]]

    def put(self, key: str, ns: str | None, name: str, obj: Json, expect: int | None) -> Entry:
        """Create (`expect` None: must not exist) or replace (`expect`: the version it must be in).

        Takes ownership of `obj` and writes its metadata.resourceVersion. Visible to readers at once, durable and
        visible to watchers after `committed()`. Raises VersionMismatch, TooLarge, StoreError.
        """
        resource = self._resource(key)
        address = (ns or "", name)
        prev = resource.objects.get(address)
        if (prev.rv if prev else None) != expect:
            raise VersionMismatch(f"{key} {address}: expected {expect}, is {prev.rv if prev else None}")
        return self._write(key, resource, "MODIFIED" if prev else "ADDED", address, obj, prev)

    def remove(self, key: str, ns: str | None, name: str, expect: int, last: Json | None = None) -> Entry:
        """Delete; watchers get `last` (default: the live object) under the version of the deletion."""
        resource = self._resource(key)
        address = (ns or "", name)
        prev = resource.objects.get(address)
        if prev is None or prev.rv != expect:
            raise VersionMismatch(f"{key} {address}: expected {expect}, is {prev.rv if prev else None}")
        return self._write(key, resource, "DELETED", address, last if last is not None else prev.copy(), prev)

    async def committed(self) -> None:
        """Wait until every write made so far is durable. Raises StoreError if the disk refused."""
        if self._commit_done is not None:
            await asyncio.shield(self._commit_done)

    def commit(self) -> None:
        """Commit the pending writes; called once per loop turn, and directly where no loop runs."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        done, self._commit_done = self._commit_done, None
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._abort(pending)
            failure = StoreError(f"{self._path}: cannot commit: {error}")
            self._failure = str(failure)
            if done is None:
                raise failure from error
            done.set_exception(failure)
            done.exception()  # marks it retrieved: without waiters asyncio would warn at garbage collection
            return
        self._failure = None
        self._visible = self._revision
        touched: dict[str, ResourceState] = {}
        for key, event in pending:
            resource = touched.setdefault(key, self._resources[key])
            self._log(resource, event)
        if done is not None:
            done.set_result(None)
        for resource in touched.values():
            _wake(resource)

    def _log(self, resource: ResourceState, event: StoreEvent) -> None:
        resource.log.append(event)
        resource.log_rvs.append(event.rv)
        self._history_bytes += len(event.entry.raw)

    def _resource(self, key: str) -> ResourceState:
        resource = self._resources.get(key)
        if resource is None:
            resource = self._resources[key] = ResourceState(self._compacted_before_start)
        return resource

    def _write(
        self, key: str, resource: ResourceState, type: EventType, address: Address, obj: Json, prev: Entry | None
    ) -> Entry:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        rv = self._revision + 1
        obj["metadata"]["resourceVersion"] = str(rv)
        raw = _encoder.encode(obj)
        if len(raw) > MAX_OBJECT_BYTES and type != "DELETED":
            raise TooLarge(len(raw))
        at = self._now()
        try:
            if not self._pending:
                self._db.execute("BEGIN IMMEDIATE")
            elif not self._db.in_transaction:
                # SQLite rolled the transaction back when an earlier write of this turn filled the disk. This
                # write would be committed on its own and remain when the others are undone.
                raise sqlite3.OperationalError("an earlier write of the same commit failed")
            self._db.execute("INSERT INTO versions VALUES (?,?,?,?,?,?,?)", (rv, key, *address, type, at, raw))
        except sqlite3.Error as error:
            if not self._pending and self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self._path}: cannot write: {error}") from error
        self._revision = rv
        entry = Entry(obj, raw, rv, address)
        event = StoreEvent(rv, type, entry, prev, at)
        resource.apply(event)
        if not self._pending:
            self._schedule_commit()
        self._pending.append((key, event))
        return entry

    def _schedule_commit(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # no loop (tools, plain tests): the caller commits
        self._commit_done = loop.create_future()
        loop.call_soon(self.commit)

    def _abort(self, pending: Pending) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        for key, event in reversed(pending):
            self._resources[key].undo(event)

    def since(self, key: str, rv: int) -> Events:
        """Committed events of `key` after version `rv`, oldest first. Raises Compacted if some are gone.

        Events of other resources don't count: a watcher of a resource without changes never becomes too old.
        """
        resource = self._resource(key)
        if rv < resource.dropped_rv:
            raise Compacted(rv, self._compacted)
        rvs = resource.log_rvs
        if not rvs or rvs[-1] <= rv:
            return []
        return resource.log[bisect_right(rvs, rv) :]

    async def wait(self, key: str, seconds: float | None = None) -> bool:
        """Wait until `key` has a new committed event; False after `seconds`.

        Call it right after `since`, without an await in between: an event in between would be missed.
        """
        resource = self._resource(key)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        # Not asyncio.timeout: a thousand watchers wait again after each event, and this takes half the time.
        timer = None if seconds is None else loop.call_later(seconds, _settle, future, False)
        resource.waiters.append(future)
        woken = False
        try:
            woken = await future
        finally:
            if timer is not None:
                timer.cancel()
            if not woken:
                resource.waiters = [w for w in resource.waiters if w is not future]
        return woken

    def wake(self, key: str) -> None:
        """Wake the watchers of `key` without an event: its CRD was deleted, or the server stops."""
        _wake(self._resource(key))

    def compact(self, upto: int | None = None) -> int:
        """Drop history up to and including `upto` (default: what retention allows). Returns the number of events."""
        self.commit()
        if upto is None:
            upto = self._retention_horizon()
        upto = min(upto, self._visible)
        if upto <= self._compacted:
            return 0
        cuts = [(resource, bisect_right(resource.log_rvs, upto)) for resource in self._resources.values()]
        obsolete_rvs: set[tuple[int]] = set()
        for resource, cut in cuts:
            for event in resource.log[:cut]:
                if event.prev is not None:
                    obsolete_rvs.add((event.prev.rv,))
                if event.type == "DELETED":
                    obsolete_rvs.add((event.rv,))
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM versions WHERE rv=?", obsolete_rvs)
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?,?)",
                [("compacted", upto), ("revision", self._visible)],
            )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self._path}: cannot compact: {error}") from error
        self._compacted = upto
        # After the commit: a history in memory with gaps would be worse than one that is too long.
        for resource, cut in cuts:
            self._history_bytes -= sum(len(event.entry.raw) for event in resource.log[:cut])
            if cut:
                resource.dropped_rv = resource.log_rvs[cut - 1]
            del resource.log[:cut], resource.log_rvs[:cut]
        return sum(cut for _, cut in cuts)

    def _retention_horizon(self) -> int:
        """The newest version that retention drops: too old, or beyond the limit of events or bytes."""
        horizon = 0
        if sum(len(resource.log) for resource in self._resources.values()) > self._retention_events:
            rvs = sorted(rv for resource in self._resources.values() for rv in resource.log_rvs)
            horizon = rvs[-self._retention_events - 1]
        excess = self._history_bytes - self._retention_bytes
        if excess > 0:
            for event in sorted((e for resource in self._resources.values() for e in resource.log), key=lambda e: e.rv):
                excess -= len(event.entry.raw)
                if excess <= 0:
                    horizon = max(horizon, event.rv)
                    break
        oldest = self._now() - self._retention_seconds
        for resource in self._resources.values():
            cut = bisect_right(resource.log, oldest, key=lambda e: e.at)
            if cut:
                horizon = max(horizon, resource.log_rvs[cut - 1])
        return horizon

    async def maintain(self) -> int:
        """Move the WAL into the database and compact by retention; call every few seconds. Raises StoreError.

        In this order, because on a full disk the checkpoint frees space.
        """
        try:
            if self._path is not None:
                # In a thread, because a checkpoint calls fsync and the loop must not wait for the disk.
                await asyncio.to_thread(_checkpoint, self._path)
                if self.wal_bytes() > WAL_LIMIT_BYTES:
                    # The WAL cannot restart while writers never pause. The thread has copied nearly all of
                    # it, so the rest, during which writers wait, is short.
                    self.commit()
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: cannot checkpoint: {error}") from error
        for resource in self._resources.values():
            resource.drop_decoded(self._now() - KEEP_DECODED_SECONDS)
        return self.compact()

    def close(self) -> None:
        """Commit, checkpoint and close; idempotent."""
        if self._closed:
            return
        self.commit()
        self._closed = True
        with contextlib.suppress(sqlite3.Error):  # on a full disk the WAL remains and the next start reads it
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _load(self) -> None:
        meta = dict(self._db.execute("SELECT name, value FROM meta"))
        self._compacted = self._compacted_before_start = meta.get("compacted", 0)
        self._revision = meta.get("revision", 0)
        rows: Iterable[tuple[int, str, str, str, EventType, float, bytes]]
        rows = self._db.execute("SELECT rv, key, ns, name, type, at, body FROM versions ORDER BY rv")
        for rv, key, ns, name, type, at, raw in rows:
            try:
                entry = Entry(_decoder.decode(raw), raw, rv, (ns, name))
            except msgspec.DecodeError as error:
                raise StoreError(f"{self._path}: version {rv} of {key} {ns}/{name} is damaged: {error}") from error
            resource = self._resource(key)
            event = StoreEvent(rv, type, entry, resource.objects.get(entry.address), at)
            resource.apply(event)
            if rv > self._compacted:
                self._log(resource, event)
            event.drop_decoded()
            self._revision = max(self._revision, rv)
        self._visible = self._revision


def _private(path: Path) -> None:
    """Create the file if it is missing, with mode 0600: it holds Secrets. SQLite copies the mode to the WAL."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _wake(resource: ResourceState) -> None:
    waiters, resource.waiters = resource.waiters, []
    for future in waiters:
        _settle(future, True)


def _settle(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)


def _checkpoint(path: Path) -> None:
    db = sqlite3.connect(path, timeout=1.0)
    try:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    finally:
        db.close()
