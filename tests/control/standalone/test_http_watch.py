"""Watches and lists over HTTPS: resource versions, bookmarks, selectors, paging at a snapshot, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control.standalone.apiserver import ApiServer
from tests.waiting import until

CMS = "/api/v1/namespaces/t/configmaps"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def cm(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


@pytest.fixture
async def http(server: ApiServer, connect: Any) -> AsyncIterator[Any]:
    client = connect(server)
    assert (await client("POST", "/api/v1/namespaces", {"metadata": {"name": "t"}})).status == 201
    # The namespace's default objects are created asynchronously: wait for them before versions are compared.

    async def furnished() -> bool:
        return bool((await client("GET", f"{CMS}/kube-root-ca.crt")).status == 200)

    await until(furnished)
    yield client
    await client.session.close()


ROOT_CA = "metadata.name!=kube-root-ca.crt"
NO_CA = f"fieldSelector={ROOT_CA.replace('!=', '%21%3D')}"


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    taken = []
    async with asyncio.timeout(60):
        async for event in events:
            taken.append(event)
            if len(taken) == count:
                break
    return taken


def brief(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["type"], e["object"]["metadata"].get("name", "")) for e in events]


async def revision(http: Any) -> str:
    return str((await http("GET", CMS)).body["metadata"]["resourceVersion"])


async def test_a_watch_from_a_version_has_exactly_the_difference(http: Any) -> None:
    await http("POST", CMS, cm("before"))
    rv = await revision(http)
    await http("POST", CMS, cm("a"))
    await http("PUT", f"{CMS}/a", cm("a", k="v"))
    await http("DELETE", f"{CMS}/a")
    events = await take(http.watch(f"{CMS}?watch=1&resourceVersion={rv}"), 3)
    assert brief(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(versions)
    assert versions[0] > int(rv)


@pytest.mark.parametrize("query", ["", "&resourceVersion=0"])
async def test_a_watch_without_version_starts_with_the_present_objects(http: Any, query: str) -> None:
    await http("POST", CMS, cm("a"))
    watch = http.watch(f"{CMS}?watch=1&{NO_CA}{query}")
    assert brief([await anext(watch)]) == [("ADDED", "a")]
    await http("POST", CMS, cm("b"))
    assert brief([await anext(watch)]) == [("ADDED", "b")]
    await watch.aclose()


async def test_initial_events_end_with_a_marked_bookmark(http: Any) -> None:
    await http("POST", CMS, cm("a"))
    query = f"watch=1&{NO_CA}&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    events = await take(http.watch(f"{CMS}?{query}"), 2)
    assert [e["type"] for e in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert events[1]["object"]["kind"] == "ConfigMap"
    refused = await http("GET", f"{CMS}?watch=1&sendInitialEvents=true")
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")


async def test_selectors_report_objects_that_enter_and_leave(http: Any) -> None:
    rv = await revision(http)
    await http("POST", CMS, cm("a", {"x": "1"}))
    await http("PUT", f"{CMS}/a", cm("a", {"x": "1"}, k="v"))
    left = await http("PUT", f"{CMS}/a", cm("a", {"x": "2"}, k="v"))
    await http("PUT", f"{CMS}/a", cm("a", {"x": "1"}))
    await http("DELETE", f"{CMS}/a")
    events = await take(http.watch(f"{CMS}?watch=1&resourceVersion={rv}&labelSelector=x%3D1"), 5)
    assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert events[2]["object"]["metadata"]["labels"] == {"x": "1"}
    assert events[2]["object"]["metadata"]["resourceVersion"] == left.body["metadata"]["resourceVersion"]


async def test_bookmarks_and_timeouts(tmp_path: Path, connect: Any) -> None:
    async with ApiServer(tmp_path / "d", bookmark_seconds=0.1, controllers=False) as server:
        client = connect(server)
        path = "/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion=1"
        watch = client.watch(path)
        events = await take(watch, 2)
        await watch.aclose()
        assert {e["type"] for e in events} == {"BOOKMARK"}
        assert events[-1]["object"] == {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(server.store.revision), "creationTimestamp": None},
        }
        assert {e["type"] async for e in client.watch(f"{path}&timeoutSeconds=1")} <= {"BOOKMARK"}, "and the watch ends"
        silent = "/api/v1/nodes?watch=1&resourceVersion=1&timeoutSeconds=1"
        assert [e async for e in client.watch(silent)] == []
        await client.session.close()


async def test_compacted_and_unknown_versions_expire(http: Any, server: ApiServer) -> None:
    rv = await revision(http)
    await http("POST", CMS, cm("a"))
    server.store.compact(server.store.revision)
    for version in (rv, "99999999"):
        (event,) = await take(http.watch(f"{CMS}?watch=1&resourceVersion={version}"), 1)
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert event["object"]["message"].startswith("too old resource version")
    exact = await http("GET", f"{CMS}?resourceVersion={rv}&resourceVersionMatch=Exact")
    assert (exact.status, exact.body["reason"]) == (410, "Expired")


async def test_a_watcher_behind_the_history_gets_410(http: Any, server: ApiServer) -> None:
    rv = await revision(http)
    watch = http.watch(f"{CMS}?watch=1&resourceVersion={rv}")
    await http("POST", CMS, cm("a"))
    assert brief([await anext(watch)]) == [("ADDED", "a")]
    await watch.aclose()
    await http("POST", CMS, cm("b"))
    server.store.compact(server.store.revision)
    resumed = await take(http.watch(f"{CMS}?watch=1&resourceVersion={rv}"), 1)
    assert resumed[0]["object"]["reason"] == "Expired"


async def test_the_connection_of_a_client_that_reads_nothing_is_closed(
    http: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.standalone.http.resources.STALL_SECONDS", 3.0)  # to be observed before
    for i in range(12):  # more than the kernel buffers for a connection
        assert (await http("POST", CMS, cm(f"big-{i}", v="x" * 1_000_000))).status == 201
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=http.context, limit=1024)
    request = f"GET {CMS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin_token}\r\n\r\n"
    writer.write(request.encode())
    await reader.readline()  # it has started; beyond `limit` the stream reads no more

    def watches() -> str:
        return next(line for line in server.metrics.text().decode().splitlines() if line.startswith("apiserver_longr"))

    assert watches() == "apiserver_longrunning_requests 1.0"

    async def cut() -> bool:
        return watches() == "apiserver_longrunning_requests 0.0"

    await until(cut)
    assert (await http("GET", f"{CMS}/big-0")).status == 200
    writer.transport.abort()


async def test_tables_in_a_watch_name_their_columns_once(http: Any) -> None:
    await http("POST", CMS, cm("a"))
    watch = http.watch(f"{CMS}?watch=1&{NO_CA}", TABLE)
    first = await anext(watch)
    await http("POST", CMS, cm("b", k="v"))
    second = await anext(watch)
    await watch.aclose()
    assert [c["name"] for c in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"][:2] == ["b", 1]


async def test_pages_show_one_snapshot(http: Any) -> None:
    for name in "abcde":
        await http("POST", CMS, cm(name))
    first = (await http("GET", f"{CMS}?limit=2")).body
    meta = first["metadata"]
    assert [o["metadata"]["name"] for o in first["items"]] == ["a", "b"]
    assert meta["remainingItemCount"] == 4
    await http("DELETE", f"{CMS}/c")
    await http("POST", CMS, cm("bb"))
    names = []
    token = meta["continue"]
    while token:
        page = (await http("GET", f"{CMS}?limit=2&continue={token}")).body
        assert page["metadata"]["resourceVersion"] == meta["resourceVersion"]
        names += [o["metadata"]["name"] for o in page["items"]]
        token = page["metadata"].get("continue")
    assert names == ["c", "d", "e", "kube-root-ca.crt"]


async def test_an_expired_page_has_a_token_to_continue(http: Any, server: ApiServer) -> None:
    for name in "abc":
        await http("POST", CMS, cm(name))
    token = (await http("GET", f"{CMS}?limit=1")).body["metadata"]["continue"]
    await http("POST", CMS, cm("aa"))
    server.store.compact(server.store.revision)
    expired = await http("GET", f"{CMS}?limit=1&continue={token}")
    assert (expired.status, expired.body["reason"]) == (410, "Expired")
    assert expired.body["message"].startswith("The provided continue parameter is too old")
    rest = await http("GET", f"{CMS}?continue={expired.body['metadata']['continue']}")
    assert [o["metadata"]["name"] for o in rest.body["items"]] == ["aa", "b", "c", "kube-root-ca.crt"]


async def test_exact_lists_show_an_older_version(http: Any) -> None:
    await http("POST", CMS, cm("a"))
    rv = await revision(http)
    await http("DELETE", f"{CMS}/a")
    past = (await http("GET", f"{CMS}?resourceVersion={rv}&resourceVersionMatch=Exact")).body
    assert "a" in {o["metadata"]["name"] for o in past["items"]}
    assert past["metadata"]["resourceVersion"] == rv
    now = (await http("GET", f"{CMS}?resourceVersion={rv}&resourceVersionMatch=NotOlderThan")).body
    assert "a" not in {o["metadata"]["name"] for o in now["items"]}


async def test_many_watchers_see_the_same(http: Any) -> None:
    rv = await revision(http)

    async def follow() -> list[tuple[str, str]]:
        return brief(await take(http.watch(f"{CMS}?watch=1&resourceVersion={rv}"), 20))

    tasks = [asyncio.create_task(follow()) for _ in range(30)]
    for i in range(20):
        await http("POST", CMS, cm(f"x{i:02}"))
    results = await asyncio.gather(*tasks)
    assert all(r == [("ADDED", f"x{i:02}") for i in range(20)] for r in results)
