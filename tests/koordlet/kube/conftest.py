"""A strict API server in the test's own process, with faults on demand; and fixtures over it.

It refuses what a real one refuses (wrong content types, unknown parameters, PUT of objects, bad versions) so that the
client can't get away with sloppiness. Faults are queued per kind of request and used up one by one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from multidict import MultiDictProxy
from prometheus_client import CollectorRegistry

from koordlet.kube import Client, ClientConfig
from tests.fakeclock import FakeClock
from tests.present import present

LIST, WATCH, OTHER = "list", "watch", "other"
_LIST_PARAMS = {"limit", "continue", "labelSelector", "fieldSelector", "resourceVersion"}
_WATCH_PARAMS = {
    "watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds", "labelSelector", "fieldSelector",
}  # fmt: skip


@dataclass
class Fault:
    """What to do instead of (or with) an answer: a status, a delay, a hang-up, an early end of a watch."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    reason: str = ""
    hang_up: bool = False
    delay: float = 0.0
    in_stream: int = 0  # watch: an ERROR event of this code


class _Watcher:
    def __init__(self, collection: str, matches: Callable[..., Any]) -> None:
        self.collection, self.matches, self.deaf = collection, matches, False
        self.queue: asyncio.Queue[Any] = asyncio.Queue()


class FakeApi:
    """Objects by collection and key, a log of changes, and watches over the log."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.version = 100
        self.oldest = 100
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.faults: dict[str, deque[Fault]] = {LIST: deque(), WATCH: deque(), OTHER: deque()}
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.headers: list[dict[str, Any]] = []
        self.tokens: dict[str, tuple[int, list[Any]]] = {}
        self.expire_tokens = False
        self.require_token: str | None = None
        self._watchers: set[_Watcher] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.end_watches("end")
        assert self._runner is not None
        await self._runner.cleanup()

    # -- what tests do to the server

    def put(self, collection: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        """Create or update an object like another client."""
        key = f"{namespace}/{name}" if namespace else name
        old = self.objects.get(collection, {}).get(key)
        meta = {"name": name, "uid": old["metadata"]["uid"] if old else str(uuid.uuid4())}
        meta |= fields.pop("metadata", {})
        if namespace:
            meta["namespace"] = namespace
        return self._store(collection, key, {"metadata": meta, **fields}, new=old is None)

    def remove(self, collection: str, name: str, namespace: str = "") -> None:
        key = f"{namespace}/{name}" if namespace else name
        gone = copy.deepcopy(self.objects[collection].pop(key))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._publish("DELETED", collection, gone)

    def compact(self) -> None:
        """Forget all history: versions before now are Gone."""
        self.oldest = self.version
        self.log.clear()

    def bookmark(self) -> None:
        self._tell_all(("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    def end_watches(self, how: str = "end") -> None:
        """`end` cleanly, `drop` the connections, `mid-line` drop them within an event, `gone` 410 in the stream."""
        self._tell_all((how, None))

    def deafen(self) -> None:
        """The watches that run now stop hearing of changes; they can still be ended."""
        for watcher in self._watchers:
            watcher.deaf = True

    @property
    def watching(self) -> int:
        return len(self._watchers)

    @property
    def watches(self) -> int:
        """Watch requests so far."""
        return sum("watch" in query for _, _, query in self.requests)

    @property
    def lists(self) -> int:
        """First pages of lists asked for so far."""
        return sum(
            method == "GET" and "limit" in query and "continue" not in query for method, _, query in self.requests
        )

    def _tell_all(self, item: tuple[str, dict[str, dict[str, str]] | None]) -> None:
        for watcher in self._watchers:
            watcher.queue.put_nowait(item)

    def _store(self, collection: str, key: str, obj: dict[str, Any], *, new: bool) -> dict[str, Any]:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects.setdefault(collection, {})[key] = obj
        self._publish("ADDED" if new else "MODIFIED", collection, copy.deepcopy(obj))
        return obj

    def _publish(self, kind: str, collection: str, obj: dict[str, Any]) -> None:
        self.log.append((self.version, kind, collection, obj))
        for watcher in self._watchers:
            if not watcher.deaf and watcher.collection == collection and watcher.matches(obj):
                watcher.queue.put_nowait((kind, obj))

    # -- HTTP

    async def _handle(self, request: web.Request) -> web.Response | web.StreamResponse:
        collection, namespace, name, sub = _split(request.path)
        self.requests.append((request.method, request.path, dict(request.query)))
        self.headers.append(dict(request.headers))
        kind = OTHER
        if request.method == "GET" and name is None:
            kind = WATCH if request.query.get("watch") == "true" else LIST
        if self.faults[kind]:
            fault = self.faults[kind].popleft()
            await asyncio.sleep(fault.delay)
            if fault.hang_up:
                present(request.transport).abort()
                return web.Response()
            if fault.status:
                body = fault.body
                if body is None:
                    body = _status(fault.status, fault.reason or "Fault", "as ordered")
                return web.Response(status=fault.status, headers=fault.headers, body=body)
            if fault.in_stream:
                return await self._watch(request, collection, namespace, first=fault.in_stream)
        if self.require_token and request.headers.get("Authorization") != f"Bearer {self.require_token}":
            return _error(401, "Unauthorized", "Unauthorized")
        if kind == WATCH:
            return await self._watch(request, collection, namespace)
        if kind == LIST:
            return self._list(request, collection, namespace)
        method = getattr(self, f"_{request.method.lower()}", None)
        if method is None:
            return _error(405, "MethodNotAllowed", request.method)
        body = await request.read()
        result: web.Response | web.StreamResponse = method(request, collection, namespace, name, sub, body)
        return result

    def _list(self, request: web.Request, collection: str, namespace: str | None) -> web.Response:
        if bad := set(request.query) - _LIST_PARAMS:
            return _error(400, "BadRequest", f"unknown parameters {sorted(bad)}")
        matches = _matcher(namespace, request.query)  # type: ignore[arg-type]
        if token := request.query.get("continue"):
            if token not in self.tokens or self.expire_tokens:
                return _error(410, "Expired", "The provided continue parameter is too old")
            version, items = self.tokens.pop(token)
        else:
            version = self.version
            items = [o for _, o in sorted(self.objects.get(collection, {}).items()) if matches(o)]
        limit = int(request.query.get("limit", 0)) or len(items)
        page, rest = items[:limit], items[limit:]
        meta = {"resourceVersion": str(version)}
        if rest:
            token = uuid.uuid4().hex
            self.tokens[token] = (version, copy.deepcopy(rest))
            meta |= {"continue": token, "remainingItemCount": len(rest)}  # type: ignore[dict-item]
        return web.json_response({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": page or None})

    async def _watch(
        self, request: web.Request, collection: str, namespace: str | None, first: int = 0
    ) -> web.StreamResponse | web.Response:
        query = request.query
        if bad := set(query) - _WATCH_PARAMS:
            return _error(400, "BadRequest", f"unknown parameters {sorted(bad)}")
        if query.get("allowWatchBookmarks") != "true" or not query.get("timeoutSeconds", "").isdecimal():
            return _error(400, "BadRequest", "this server insists on bookmarks and a time-out")
        since = int(query["resourceVersion"])
        if since < self.oldest:
            return _error(410, "Expired", f"too old resource version: {since} ({self.oldest})")
        watcher = _Watcher(collection, _matcher(namespace, query))  # type: ignore[arg-type]
        for version, kind, where, obj in self.log:
            if version > since and where == collection and watcher.matches(obj):
                watcher.queue.put_nowait((kind, obj))
        if first:
            watcher.queue.put_nowait(("gone", None))
        self._watchers.add(watcher)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            while True:
                kind, obj = await watcher.queue.get()
                if kind == "end":
                    return response
                if kind in ("drop", "mid-line"):
                    if kind == "mid-line":
                        await response.write(b'{"type":"MODIFIED","object":{"metad')
                    present(request.transport).abort()
                    return response
                if kind == "gone":
                    kind, obj = "ERROR", json.loads(_status(410, "Expired", "too old resource version"))
                line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
                half = len(line) // 2
                await response.write(line[:half])  # events never come in convenient pieces
                await response.write(line[half:])
                if kind == "ERROR":
                    return response
        except ConnectionResetError:
            return response
        finally:
            self._watchers.discard(watcher)

    def _get(
        self, request: web.Request, collection: str, namespace: str | None, name: str, sub: Any, body: bytes
    ) -> web.Response:
        obj = self.objects.get(collection, {}).get(f"{namespace}/{name}" if namespace else name)
        if obj is None:
            return _error(404, "NotFound", f'{collection.rsplit("/")[-1]} "{name}" not found')
        return web.json_response(obj)

    def _post(
        self,
        request: web.Request,
        collection: str,
        namespace: str | None,
        name: str | None,
        sub: str | None,
        body: bytes,
    ) -> web.Response:
        if request.content_type != "application/json":
            return _error(415, "UnsupportedMediaType", request.content_type)
        obj = json.loads(body)
        if not obj.get("apiVersion") or not obj.get("kind"):
            return _error(400, "BadRequest", "apiVersion and kind are required")
        if sub == "eviction":
            return _error(201, "", "")
        name = obj["metadata"].get("name") or obj["metadata"]["generateName"] + uuid.uuid4().hex[:5]
        key = f"{namespace}/{name}" if namespace else name
        if key in self.objects.get(collection, {}):
            return _error(409, "AlreadyExists", f'"{name}" already exists')
        if not name.replace("-", "").replace(".", "").isalnum() or name != name.lower():
            causes = [{"reason": "FieldValueInvalid", "message": "bad name", "field": "metadata.name"}]
            return _error(422, "Invalid", f"{name} is invalid", causes)
        obj["metadata"] |= {"uid": str(uuid.uuid4()), "name": name}
        if namespace:
            obj["metadata"]["namespace"] = namespace
        return web.json_response(self._store(collection, key, obj, new=True), status=201)

    def _patch(
        self, request: web.Request, collection: str, namespace: str | None, name: str, sub: str | None, body: bytes
    ) -> web.Response:
        key = f"{namespace}/{name}" if namespace else name
        old = self.objects.get(collection, {}).get(key)
        patch = json.loads(body)
        match request.content_type:
            case "application/merge-patch+json" | "application/strategic-merge-patch+json":
                if old is None:
                    return _error(404, "NotFound", f'"{name}" not found')
                version = patch.get("metadata", {}).get("resourceVersion")
                if version and version != old["metadata"]["resourceVersion"]:
                    return _error(409, "Conflict", "the object has been modified")
                if sub == "status":
                    patch = {key: value for key, value in patch.items() if key == "status"}
                new = _merge(copy.deepcopy(old), patch)
            case "application/apply-patch+yaml":
                if not request.query.get("fieldManager") or not patch.get("apiVersion") or not patch.get("kind"):
                    return _error(400, "BadRequest", "apply needs fieldManager, apiVersion and kind")
                owner, manager = (old or {}).get("owner", ""), request.query["fieldManager"]
                if owner not in ("", manager) and request.query.get("force") != "true":
                    return _error(409, "Conflict", "Apply failed with 1 conflict")
                new = _merge(copy.deepcopy(old or {"metadata": {"uid": str(uuid.uuid4())}}), patch)
            case "application/json-patch+json":
                if old is None or not isinstance(patch, list):
                    return _error(404 if old is None else 400, "NotFound" if old is None else "BadRequest", "x")
                new = copy.deepcopy(old)
                for op in patch:
                    *parents, last = op["path"].strip("/").split("/")
                    target = new
                    for part in parents:
                        target = target[part.replace("~1", "/").replace("~0", "~")]
                    target[last.replace("~1", "/").replace("~0", "~")] = op["value"]
            case other:
                return _error(415, "UnsupportedMediaType", other)
        return web.json_response(self._store(collection, key, new, new=old is None))

    def _delete(
        self, request: web.Request, collection: str, namespace: str | None, name: str, sub: Any, body: bytes
    ) -> web.Response:
        options = json.loads(body)
        if options.get("kind") != "DeleteOptions":
            return _error(400, "BadRequest", "DeleteOptions expected")
        obj = self.objects.get(collection, {}).get(f"{namespace}/{name}" if namespace else name)
        if obj is None:
            return _error(404, "NotFound", f'"{name}" not found')
        uid = options.get("preconditions", {}).get("uid")
        if uid and uid != obj["metadata"]["uid"]:
            return _error(409, "Conflict", "the UID in the precondition does not match")
        self.remove(collection, name, namespace or "")
        return _error(200, "", "")


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = _merge(target[key] if isinstance(target.get(key), dict) else {}, value)
        else:
            target[key] = value
    return target


def _matcher(namespace: str | None, query: MultiDictProxy[str]) -> Callable[[dict[str, Any]], bool]:
    fields = dict(part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if part)
    labels = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
    unknown = set(fields) - {"metadata.name", "spec.nodeName"}
    assert not unknown, f"field selectors {unknown} are not supported"

    def matches(obj: dict[str, Any]) -> bool:
        meta = obj["metadata"]
        return (
            (not namespace or meta.get("namespace") == namespace)
            and fields.get("metadata.name", meta["name"]) == meta["name"]
            and fields.get("spec.nodeName", "") in ("", obj.get("spec", {}).get("nodeName"))
            and all(meta.get("labels", {}).get(key) == value for key, value in labels.items())
        )

    return matches


def _split(path: str) -> tuple[str, str | None, str | None, str | None]:
    """(collection, namespace, name, subresource) of /api/v1/… and /apis/group/version/…"""
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    prefix, rest = "/".join(parts[:head]), parts[head:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return f"{prefix}/{rest[0]}", namespace, rest[1] if len(rest) > 1 else None, rest[2] if len(rest) > 2 else None


def _status(code: int, reason: str, message: str, causes: Sequence[dict[str, str]] = ()) -> bytes:
    ok = code < 400
    return json.dumps({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" if ok else "Failure",
        "message": message, "reason": reason, "code": code, "details": {"causes": list(causes)},
    }).encode()  # fmt: skip


def _error(code: int, reason: str, message: str, causes: Sequence[dict[str, str]] = ()) -> web.Response:
    return web.Response(status=code, body=_status(code, reason, message, causes), content_type="application/json")


CONFIG_MAPS, NODES, PODS = "api/v1/configmaps", "api/v1/nodes", "api/v1/pods"


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    """A running FakeApi."""
    server = FakeApi()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def clock() -> FakeClock:
    """A clock on which back-off takes no time."""
    return FakeClock(auto=True)


@pytest.fixture
async def client(fake: FakeApi, clock: FakeClock) -> AsyncIterator[Client]:
    """A client of the fake server, without rate limit, with a registry of its own."""
    async with Client(ClientConfig(server=fake.url, qps=0), clock=clock, registry=CollectorRegistry()) as api_client:
        yield api_client
