"""Renders stored entries as response bytes: objects, lists, watch events, tables, metadata only.

The common case (JSON objects in the stored version) concatenates bytes that already exist. Other encodings of an
object version are made once and cached on its entry, so that all watchers share them. Table rows contain ages and are
made for each response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from control.standalone import strategy
from control.standalone.http.columns import columns_for
from control.standalone.http.negotiate import View
from control.standalone.http.responses import encode
from control.standalone.http.table import partial, row, table
from control.standalone.kinds import ResourceKind
from control.standalone.versions import Entry

Json = dict[str, Any]


@dataclass(slots=True)
class Renderer:
    """Renders one kind for one request. Ages are relative to `now` (seconds)."""

    kind: ResourceKind
    version: str
    view: View
    include: str = "Metadata"  # tables: the part of the object in each row (includeObject)

    def object(self, entry: Entry, now: float) -> bytes:
        if self.view == "table":
            columns = columns_for(self.kind, self.version)
            obj = self._served(entry)
            meta = {"resourceVersion": str(entry.rv)}
            return encode(table(columns, [row(columns, obj, now, self.include)], meta))
        return self._cached(entry)

    def written(self, obj: Json, now: float) -> bytes:
        """The result of a write, an object that is already in the client's version."""
        if self.view == "partial":
            return encode(partial(obj))
        columns = columns_for(self.kind, self.version)
        meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return encode(table(columns, [row(columns, obj, now, self.include)], meta))

    def list(self, entries: list[Entry], metadata: Json, now: float) -> bytes:
        if self.view == "table":
            columns = columns_for(self.kind, self.version)
            rows = [row(columns, self._served(e), now, self.include) for e in entries]
            return encode(table(columns, rows, metadata))
        if self.view == "partial":
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        else:
            head = {
                "kind": self.kind.list_kind,
                "apiVersion": self.kind.served_as(self.version),
                "metadata": metadata,
            }
        items = map(self._cached, entries) if self.kind.custom or self.view == "partial" else self._bare(entries)
        return encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"

    def _bare(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """The objects without their first fields, apiVersion and kind: a list of a built-in kind has them once."""
        identity = {"apiVersion": self.kind.served_as(self.version), "kind": self.kind.kind}
        start = encode(identity)[:-1] + b","
        for entry in entries:
            raw = self._cached(entry)
            yield b"{" + raw[len(start) :] if raw.startswith(start) else raw

    def event(self, type: str, entry: Entry, now: float, *, header: bool = False) -> bytes:
        """One line of a watch. `header`: with column definitions (the first event of a table watch)."""
        if self.view == "table":
            columns = columns_for(self.kind, self.version)
            rows = [row(columns, self._served(entry), now, self.include)]
            body = encode(table(columns, rows, {"resourceVersion": str(entry.rv)}, header=header))
        else:
            body = self._cached(entry)
        return b'{"type":"' + type.encode() + b'","object":' + body + b"}\n"

    def bookmark(self, rv: int, annotations: dict[str, str] | None = None, *, header: bool) -> bytes:
        meta: Json = {"resourceVersion": str(rv), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        if self.view == "table":
            body = table(columns_for(self.kind, self.version), [], meta, header=header)
            if annotations:
                # A table's metadata is a ListMeta, which has no annotations; they go into a row's object.
                body["rows"] = [{"cells": [], "object": partial({"metadata": meta})}]
                body["metadata"] = {"resourceVersion": str(rv)}
        elif self.view == "partial":
            body = partial({"metadata": meta})
        else:
            body = {"kind": self.kind.kind, "apiVersion": self.kind.served_as(self.version), "metadata": meta}
        return b'{"type":"BOOKMARK","object":' + encode(body) + b"}\n"

    def _served(self, entry: Entry) -> Json:
        """The object in the client's version, read only."""
        if self.include != "Object":
            return entry.obj  # columns read the stored form; the rows' metadata is the same in all versions
        return self._converted(entry)

    def _converted(self, entry: Entry) -> Json:
        return strategy.to_version(self.kind, dict(entry.obj), self.version)

    def _cached(self, entry: Entry) -> bytes:
        if self.view == "object" and strategy.same_bytes(self.kind, self.version):
            return entry.raw
        key = (self.kind.key, self.version, self.view)
        if entry.cache is None:
            entry.cache = {}
        encoded = entry.cache.get(key)
        if encoded is None:
            obj = partial(entry.obj) if self.view == "partial" else self._converted(entry)
            encoded = entry.cache[key] = encode(obj)
        return encoded


def status_event(status: Json) -> bytes:
    """The ERROR event that ends a watch."""
    return b'{"type":"ERROR","object":' + encode(status) + b"}\n"
