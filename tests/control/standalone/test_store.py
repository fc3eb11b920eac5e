"""The store: versions, replay from any version, snapshots, compaction, durability after kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.standalone.store import KEEP_DECODED_SECONDS, Compacted, ObjectStore, StoreError, TooLarge, VersionMismatch

KEY = "/configmaps"


def obj(name: str, value: Any = 0, ns: str = "default") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": ns}, "data": {"v": value}}


def put(store: ObjectStore, name: str, value: Any = 0, ns: str = "default", key: str = KEY) -> int:
    live = store.entry(key, ns, name)
    entry = store.put(key, ns, name, obj(name, value, ns), live.rv if live else None)
    store.commit()
    return entry.rv


def remove(store: ObjectStore, name: str, ns: str = "default", key: str = KEY) -> int:
    live = store.entry(key, ns, name)
    assert live is not None
    entry = store.remove(key, ns, name, live.rv)
    store.commit()
    return entry.rv


def contents(store: ObjectStore, rv: int | None = None) -> dict[str, Any]:
    return {e.address[1]: e.obj["data"]["v"] for e in store.entries(KEY, None, rv)}


def test_versions_are_global_and_monotonic() -> None:
    store = ObjectStore(None)
    assert [put(store, "a"), put(store, "b", key="/secrets"), put(store, "a", 1), remove(store, "a")] == [1, 2, 3, 4]
    assert store.revision == 4
    assert store.get(KEY, "default", "a") is None
    assert store.get("/secrets", "default", "b") is not None


def test_lists_are_ordered_and_limited_to_a_namespace() -> None:
    store = ObjectStore(None)
    for ns, name in (("b", "x"), ("a", "z"), ("a", "y"), ("ab", "w")):
        put(store, name, ns=ns)
    assert [(o["metadata"]["namespace"], o["metadata"]["name"]) for o in store.list(KEY)] == [
        ("a", "y"), ("a", "z"), ("ab", "w"), ("b", "x"),
    ]  # fmt: skip
    assert [o["metadata"]["name"] for o in store.list(KEY, "a")] == ["y", "z"]


def test_compare_and_swap_rejects_other_versions() -> None:
    store = ObjectStore(None)
    rv = put(store, "a")
    with pytest.raises(VersionMismatch):
        store.put(KEY, "default", "a", obj("a"), None)
    with pytest.raises(VersionMismatch):
        store.put(KEY, "default", "a", obj("a"), rv + 1)
    with pytest.raises(VersionMismatch):
        store.remove(KEY, "default", "b", rv)


async def test_writes_of_one_turn_share_a_commit_and_watchers_see_them_after_it(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s.db")
    store.put(KEY, "default", "a", obj("a"), None)
    store.put(KEY, "default", "b", obj("b"), None)
    assert store.revision == 0
    assert store.since(KEY, 0) == []
    assert store.get(KEY, "default", "a") is not None
    await store.committed()
    assert [e.rv for e in store.since(KEY, 0)] == [1, 2]
    store.close()


async def test_wait_wakes_only_for_its_key() -> None:
    store = ObjectStore(None)
    waiting = asyncio.create_task(store.wait(KEY, 5))
    other = asyncio.create_task(store.wait("/secrets", 0.05))
    await asyncio.sleep(0)
    store.put(KEY, "default", "a", obj("a"), None)
    assert await waiting is True
    assert await other is False


async def test_a_failed_commit_is_undone_and_reported(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s.db")
    put(store, "a", 1)
    broken = store._db
    store._db = _RefusingCommit(broken)  # type: ignore[assignment]
    store.put(KEY, "default", "b", obj("b"), None)
    store.put(KEY, "default", "a", obj("a", 2), 1)
    with pytest.raises(StoreError, match="disk full"):
        await store.committed()
    assert contents(store) == {"a": 1}
    assert store.revision == 1
    assert "disk full" in (store.healthy or "")
    store._db = broken
    assert put(store, "b") == 4, "versions of undone writes are not used again"
    assert [e.rv for e in store.since(KEY, 1)] == [4]
    assert store.healthy is None
    store.close()
    again = ObjectStore(tmp_path / "s.db")
    assert contents(again) == {"a": 1, "b": 0}
    again.close()


async def test_writes_after_one_that_filled_the_disk_fail_with_it(tmp_path: Path) -> None:
    """SQLite rolls the whole transaction back when the disk is full; later writes must not be committed alone."""
    store = ObjectStore(tmp_path / "s.db")
    store.put(KEY, "default", "a", obj("a"), None)
    store._db.execute("ROLLBACK")  # as SQLite does on SQLITE_FULL
    with pytest.raises(StoreError, match="earlier write"):
        store.put(KEY, "default", "b", obj("b"), None)
    with pytest.raises(StoreError, match="cannot commit"):
        await store.committed()
    assert contents(store) == {}
    put(store, "c")
    store.close()
    again = ObjectStore(tmp_path / "s.db")
    assert contents(again) == {"c": 0}
    again.close()


async def test_a_failed_compaction_leaves_no_gap_and_is_repeated(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s.db", retention_events=2)
    for i in range(6):
        put(store, "a", i)
    broken = store._db
    store._db = _RefusingCommit(broken)  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"s\.db: cannot compact: .*disk full"):
        await store.maintain()
    assert [e.rv for e in store.since(KEY, 0)] == [1, 2, 3, 4, 5, 6]
    store._db = broken
    assert await store.maintain() == 4
    with pytest.raises(Compacted):
        store.since(KEY, 0)
    store.close()


async def test_continuous_load_does_not_grow_the_wal_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.standalone.store.WAL_LIMIT_BYTES", 100_000)
    store = ObjectStore(tmp_path / "s.db")
    for i in range(100):
        put(store, f"a{i}", "x" * 2000)
    store.put(KEY, "default", "pending", obj("pending"), None)
    assert store.wal_bytes() > 100_000
    await store.maintain()
    assert store.wal_bytes() == 0
    assert store.healthy is None
    store.close()
    again = ObjectStore(tmp_path / "s.db")
    assert len(contents(again)) == 101
    again.close()


def test_objects_have_a_size_limit_and_the_file_is_private(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s.db")
    rv = put(store, "a", "x" * 1_500_000)
    with pytest.raises(TooLarge, match="at most 1572864"):
        put(store, "a", "x" * 1_600_000)
    assert store.revision == rv
    assert {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {
        "s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600,
    }  # fmt: skip
    store.close()


class _RefusingCommit:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full: disk full")
        return self._db.execute(sql, *args)


OPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.sampled_from(["put", "put", "remove", "compact", "reopen"]), st.integers(0, 9)
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(OPS)
def test_every_kept_version_can_be_replayed_and_listed(ops: list[tuple[str, str, int]]) -> None:
    """Compared with a list of dicts, the states after every version. Replaying events from any kept version over the
    state at that version gives the present one; a snapshot has the state at its version; also after a restart."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        store = ObjectStore(path)
        states: dict[int, dict[str, Any]] = {0: {}}
        for name, op, value in ops:
            model = dict(states[max(states)])
            if op == "put":
                states[put(store, name, value)] = {**model, name: value}
            elif op == "remove" and name in model:
                del model[name]
                states[remove(store, name)] = model
            elif op == "compact":
                store.compact(max(0, store.revision - value))
            elif op == "reopen":
                store.close()
                store = ObjectStore(path)
        present = states[max(states)]
        assert store.revision == max(states)
        for rv, state in states.items():
            if rv < store.compacted:
                with pytest.raises(Compacted):
                    store.since(KEY, rv)
                with pytest.raises(Compacted):
                    store.entries(KEY, None, rv)
                continue
            assert contents(store, rv) == state
            replayed = dict(state)
            for event in store.since(KEY, rv):
                name = event.entry.address[1]
                assert (event.prev is None) == (name not in replayed)
                if event.type == "DELETED":
                    del replayed[name]
                else:
                    assert event.type == ("MODIFIED" if name in replayed else "ADDED")
                    replayed[name] = event.entry.obj["data"]["v"]
            assert replayed == present
        store.close()


def test_compaction_frees_old_versions_on_disk_and_keeps_the_present(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s.db")
    for i in range(50):
        put(store, "a", i)
    put(store, "gone")
    remove(store, "gone")
    store.compact(store.revision)
    assert store._db.execute("SELECT count(*) FROM versions").fetchone() == (1,)
    store.close()
    again = ObjectStore(tmp_path / "s.db")
    assert again.revision == 52
    assert put(again, "b") == 53
    assert contents(again) == {"a": 49, "b": 0}
    again.close()


def test_retention_by_count_and_by_age() -> None:
    clock = [1000.0]
    store = ObjectStore(None, retention_seconds=60, retention_events=5, now=lambda: clock[0])
    for i in range(8):
        put(store, "a", i)
    assert store.compact() == 3
    assert store.compacted == 3
    clock[0] += 61
    put(store, "a", 9)
    assert store.compact() == 5
    assert [e.rv for e in store.since(KEY, 8)] == [9]


def test_retention_by_bytes() -> None:
    store = ObjectStore(None, retention_bytes=10_000)
    for i in range(20):
        put(store, "a", f"{i}" + "x" * 1000)
    store.compact()
    kept = store.since(KEY, store.compacted)
    assert 0 < sum(len(e.entry.raw) for e in kept) <= 10_000
    assert store.compact() == 0
    assert contents(store)["a"].startswith("19x")


async def test_history_is_kept_encoded_and_reads_as_before(tmp_path: Path) -> None:
    clock = [1000.0]
    store = ObjectStore(tmp_path / "s.db", now=lambda: clock[0])
    put(store, "a", 1)
    put(store, "a", 2)
    put(store, "b", 1)
    remove(store, "b")
    clock[0] += KEEP_DECODED_SECONDS + 1
    put(store, "a", 3)
    await store.maintain()

    def decoded(of: ObjectStore) -> list[tuple[bool | None, bool]]:
        return [(e.prev._obj is not None if e.prev else None, e.entry._obj is not None) for e in of.since(KEY, 0)]

    assert decoded(store) == [(None, False), (False, True), (None, False), (False, False), (True, True)]
    assert [contents(store, rv) for rv in range(6)] == [{}, {"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"a": 2}, {"a": 3}]
    store.close()
    again = ObjectStore(tmp_path / "s.db", now=lambda: clock[0])
    assert decoded(again) == [(None, False), (False, False), (None, False), (False, False), (False, True)]
    assert contents(again, 3) == {"a": 2, "b": 1}
    again.close()


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = ObjectStore(path)
    put(store, "a")
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE versions SET body = x'7b'")
    db.close()
    with pytest.raises(StoreError, match=r"version 1 of /configmaps default/a is damaged"):
        ObjectStore(path)
    path.write_bytes(b"not a database, certainly not one of ours" * 100)
    with pytest.raises(StoreError, match=r"s\.db: cannot open"):
        ObjectStore(path)


WRITER = """
import asyncio, os, sys
from pathlib import Path
from control.standalone.store import ObjectStore

async def main():
    store = ObjectStore(Path(sys.argv[1]))
    async def one(worker):
        i = 0
        while True:
            name = f"w{worker}-{i}"
            store.put("/configmaps", "default", name, {"metadata": {"name": name}, "data": {"v": i}}, None)
            await store.committed()
            os.write(1, (name + "\\n").encode())
            i += 1
    async def upkeep():
        while True:
            await asyncio.sleep(0.02)
            await store.maintain()
    await asyncio.gather(*(one(w) for w in range(8)), upkeep())

asyncio.run(main())
"""


@pytest.mark.parametrize("rounds", [3])
def test_kill_9_loses_no_acknowledged_write(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "s.db"
    acknowledged: set[str] = set()
    for round_number in range(rounds):
        script = WRITER.replace('f"w{worker}-{i}"', f'f"r{round_number}-w{{worker}}-{{i}}"')
        child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd())
        assert child.stdout is not None
        for _ in range(300):
            acknowledged.add(child.stdout.readline().decode().strip())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().decode()
        child.stdout.close()
        child.wait()
        complete = rest.rpartition("\n")[0]
        acknowledged |= {line for line in complete.split("\n") if line}
        store = ObjectStore(path)
        stored = {o["metadata"]["name"] for o in store.list(KEY)}
        assert acknowledged <= stored
        versions = [e.rv for e in store.entries(KEY)]
        assert len(set(versions)) == len(versions)
        assert store.revision == max(versions)
        assert json.loads(store.entries(KEY)[0].raw) == store.entries(KEY)[0].obj
        store.close()
