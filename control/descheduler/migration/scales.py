"""The replicas of workloads of any kind, from the `scale` subresource (spec 07 §11.4).

Decisions are synchronous, so they use the last fetched number. `fetch` is called before a job is arbitrated. Without a
number, for example for a batch Job, the caller counts the pods. Owner references are written by tenants: only texts
that can be group, version, kind and name of an object become part of a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta, OwnerReference
from koordlet.app.logging import get_logger
from koordlet.kube import Client, Forbidden, KubeError, NotFound

log = get_logger(__name__)
_T = TypeVar("_T")

MAX_AGE_S = 30.0
"""Age from which on a number is fetched again."""
MAX_ENTRIES = 4096
RETRY_S = 30.0
"""Pause after a failure of an API group, which one tenant's pod can name and which must not delay other jobs."""
_API_VERSION = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class _ApiResourceInfo(Struct):
    name: str = ""
    kind: str = ""


class _ApiResourceList(Struct):
    resources: list[_ApiResourceInfo] = msgspec.field(default_factory=list)


class _ScaleSpec(Struct):
    replicas: int = 0


class _Scale(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _ScaleSpec = msgspec.field(default_factory=_ScaleSpec)


@dataclass(frozen=True, slots=True)
class _Known:
    replicas: int | None
    at: float


class Scales:
    """Replicas by UID of the workload."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, _Known] = {}
        self._plurals: dict[tuple[str, str], str | None] = {}
        self._failures: dict[str, tuple[float, KubeError]] = {}
        """API group and version -> time and error of the last failed request."""

    def replicas(self, namespace: str, owner: OwnerReference) -> int | None:
        """The last fetched number; None: never fetched, or the kind has none."""
        known = self._known.get(owner.uid)
        return known.replicas if known is not None else None

    async def fetch(self, namespace: str, owner: OwnerReference) -> None:
        """Fetch the number if it is old. Raises KubeError."""
        now = self._client.clock.monotonic()
        known = self._known.get(owner.uid)
        if known is not None and now - known.at < MAX_AGE_S:
            return
        failed_at, error = self._failures.get(owner.api_version, (-RETRY_S, None))
        if error is not None and now - failed_at < RETRY_S:
            raise error
        try:
            replicas = await self._request(namespace, owner)
        except KubeError as failure:
            if len(self._failures) >= MAX_ENTRIES:
                self._failures.clear()
            self._failures[owner.api_version] = (self._client.clock.monotonic(), failure)
            raise
        if len(self._known) >= MAX_ENTRIES:
            self._known = {uid: each for uid, each in self._known.items() if now - each.at < MAX_AGE_S}
        self._known[owner.uid] = _Known(replicas, now)

    async def _request(self, namespace: str, owner: OwnerReference) -> int | None:
        if not _API_VERSION.fullmatch(owner.api_version) or not _NAME.fullmatch(owner.name) or ".." in owner.name:
            return None
        base = f"/apis/{owner.api_version}" if "/" in owner.api_version else f"/api/{owner.api_version}"
        plural = await self._plural(base, owner.kind)
        if plural is None:
            return None
        try:
            body = await self._client.raw("GET", f"{base}/namespaces/{namespace}/{plural}/{owner.name}/scale")
        except NotFound:
            return None
        except Forbidden as error:
            log.warning("Counting the pods of a workload, its scale is not readable", kind=owner.kind, err=error)
            return None
        scale = _decoded(body, _Scale, f"scale of {owner.kind} {namespace}/{owner.name}")
        return scale.spec.replicas if scale.metadata.uid == owner.uid else None

    async def _plural(self, base: str, kind: str) -> str | None:
        """The resource of a kind that has a `scale` subresource."""
        key = (base, kind)
        if key not in self._plurals:
            try:
                body = await self._client.raw("GET", base)
            except NotFound:
                return None
            listed = _decoded(body, _ApiResourceList, f"resources of {base}")
            if len(self._plurals) >= MAX_ENTRIES:
                self._plurals.clear()
            names = {each.name for each in listed.resources}
            self._plurals[key] = next(
                (
                    each.name
                    for each in listed.resources
                    if each.kind == kind and "/" not in each.name and f"{each.name}/scale" in names
                ),
                None,
            )
        return self._plurals[key]


def _decoded(body: bytes, type: type[_T], where: str) -> _T:
    """Raises KubeError: the server of an API group may return an invalid answer, which does not stop the program."""
    try:
        decoded: _T = wire.decode(body, type, where=where)
    except wire.WireError as error:
        raise KubeError(str(error)) from error
    return decoded
