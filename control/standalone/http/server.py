"""The request path: authenticate, find the kind, authorize, dispatch, count.

One handler for all URLs on aiohttp's low-level server, because the paths are a grammar (`requestinfo`), not
a table of routes. Every failure becomes a Status object; an unexpected exception is logged with its trace and
returned as 500. The modules that this one dispatches to write the responses.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from control.standalone import errors
from control.standalone.http.authorization import require
from control.standalone.http.discovery import Discovery
from control.standalone.http.health import ServerHealth, version_info
from control.standalone.http.metrics import Metrics
from control.standalone.http.negotiate import ACCEPTED, discovery_version, openapi_type
from control.standalone.http.requestinfo import RequestInfo, parse
from control.standalone.http.resources import ResourceHandlers, body_object
from control.standalone.http.responses import error_response, json_response, text_response
from control.standalone.http.subresources import SubresourceHandlers
from control.standalone.kinds import ResourceKind
from control.standalone.policyinterfaces import ANONYMOUS, ApiUser, Authenticator, Authorizer, AuthzAttributes
from control.standalone.registry import ObjectRegistry
from control.standalone.store import StoreError
from control.standalone.streams.takeover import UPGRADED
from koordlet.app.logging import get_logger

Json = dict[str, Any]
log = get_logger(__name__)

_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")


class OpenAPIDocs(Protocol):
    def v2(self) -> bytes: ...

    def v2_protobuf(self) -> bytes: ...

    def v3_index(self) -> Json: ...

    def v3(self, path: str) -> bytes | None: ...


class Reviews(Protocol):
    """TokenReview, SubjectAccessReview and similar kinds: a response is computed, nothing is stored."""

    async def review(self, kind: ResourceKind, namespace: str, body: Json, user: ApiUser) -> Json: ...


@dataclass(slots=True)
class RequestHandlers:
    """The components that requests are dispatched to."""

    registry: ObjectRegistry
    resources: ResourceHandlers
    subresources: SubresourceHandlers
    discovery: Discovery
    health: ServerHealth
    metrics: Metrics
    authenticator: Authenticator
    authorizer: Authorizer
    reviews: Reviews | None = None
    openapi: OpenAPIDocs | None = None
    audit: Callable[[Json], None] | None = None
    build: str = "dev"


class RequestDispatcher:
    """`handle` is the aiohttp handler."""

    def __init__(self, handlers: RequestHandlers) -> None:
        self._h = handlers

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        start = time.monotonic()
        metrics = self._h.metrics
        info = parse(request.method, request.path, request.query)
        user: ApiUser | None = None
        kind: ResourceKind | None = None
        code = 500
        metrics.inflight.inc()
        try:
            user = await self._authenticate(request)
            kind = self._kind(info)
            self._authorize(info, user)
            response = await self._answer(request, info, kind, user)
            code = response.status
            if kind is not None and kind.deprecation and not response.prepared:
                response.headers.add("Warning", f'299 - "{kind.deprecation}"')
        except errors.StatusError as error:
            response = error_response(request, error)
            code = error.code
        except StoreError as error:
            log.error("The store failed during a request", path=request.path, err=error)
            response = error_response(request, errors.internal(str(error)))
        except asyncio.CancelledError:
            code = 101 if UPGRADED in request else 499  # the client disconnected
            raise
        except web.HTTPException as error:
            code = error.status
            raise
        except RecursionError:
            response = error_response(request, errors.bad_request("the object is nested too deeply"))
            code = response.status
        except Exception as error:
            log.exception("Request failed", method=request.method, path=request.path)
            response = error_response(request, errors.internal(f"{type(error).__name__}: {error}"))
        finally:
            seconds = time.monotonic() - start
            metrics.inflight.dec()
            served = kind is not None
            labels = (
                info.verb,
                info.group if served else "",
                info.version if served else "",
                info.resource if served else "",
                info.subresource if served else "",
            )
            metrics.observe(labels, code, seconds)
            if self._h.audit is not None:
                self._audit(request, info, user, code, seconds)
        return response

    async def _authenticate(self, request: web.BaseRequest) -> ApiUser:
        transport = request.transport
        peer: Json | None = transport.get_extra_info("peercert") if transport is not None else None
        user = await self._h.authenticator.authenticate(request.headers, peer)
        if user is None:
            user = ANONYMOUS
        return self._impersonate(request, user)

    def _impersonate(self, request: web.BaseRequest, user: ApiUser) -> ApiUser:
        """kubectl --as: needs the verb `impersonate` on the user, on each requested group and on the uid.

        A service account without requested groups has its own groups.
        """
        name = request.headers.get("Impersonate-User", "")
        groups = tuple(request.headers.getall("Impersonate-Group", []))
        uid = request.headers.get("Impersonate-Uid", "")
        if not name:
            if groups or uid:
                raise errors.bad_request(f"requested {'groups' if groups else 'uid'} without impersonating a user")
            return user

        def require_impersonate(resource: str, name: str, group: str = "", namespace: str = "") -> None:
            attributes = AuthzAttributes(user, "impersonate", group, "v1", resource, "", namespace, name)
            require(self._h.authorizer, attributes)

        namespace, account = _service_account(name)
        if namespace:
            require_impersonate("serviceaccounts", account, namespace=namespace)
        else:
            require_impersonate("users", name)
        for group in groups:
            require_impersonate("groups", group)
        if uid:
            require_impersonate("uids", uid, "authentication.k8s.io")
        if namespace and not groups:
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        if name != ANONYMOUS.name and "system:authenticated" not in groups:
            groups = (*groups, "system:authenticated")
        return ApiUser(name, groups, uid)

    def _kind(self, info: RequestInfo) -> ResourceKind | None:
        if not info.resource:
            return None
        return self._h.registry.kinds.find(info.group, info.version, info.resource)

    def _authorize(self, info: RequestInfo, user: ApiUser) -> None:
        if info.resource:
            attributes = AuthzAttributes(
                user,
                info.verb,
                info.group,
                info.version,
                info.resource,
                info.subresource,
                info.namespace,
                info.name,
                info.path,
            )
        else:
            attributes = AuthzAttributes(user, info.verb, path=info.path)
        require(self._h.authorizer, attributes)

    async def _answer(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind | None, user: ApiUser
    ) -> web.StreamResponse:
        if not info.resource:
            return self._path(request, info)
        if kind is None:
            raise errors.no_such_resource()
        if not info.verb or request.method == "HEAD":
            raise errors.method_not_allowed()
        if info.namespace and not kind.namespaced and info.resource != "namespaces":
            raise errors.no_such_resource()
        if kind.namespaced and not info.namespace and (info.name and info.verb not in ("list", "watch")):
            raise errors.no_such_resource()
        if info.subresource:
            return await self._h.subresources.handle(request, info, kind, user)
        if info.verb not in kind.verbs:
            raise errors.method_not_allowed()
        if kind.verbs == ("create",):
            return await self._review(request, info, kind, user)
        if kind.namespaced and not info.namespace and info.verb not in ("list", "watch"):
            raise errors.method_not_allowed()
        if info.verb == "update" and not info.name:
            raise errors.method_not_allowed()
        if info.verb == "create" and info.name:
            raise errors.method_not_allowed()
        return await self._h.resources.handle(request, info, kind, user)

    async def _review(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        if kind.key == "/bindings":
            return await self._h.subresources.bind(request, info, user)
        if self._h.reviews is None:
            raise errors.internal(f"no reviewer is configured for {kind.plural}")
        body = await body_object(request)
        review = await self._h.reviews.review(kind, info.namespace, body, user)
        return json_response(request, review, 201)

    def _path(self, request: web.BaseRequest, info: RequestInfo) -> web.Response:
        if info.verb != "get":
            raise errors.method_not_allowed()
        path = info.path.rstrip("/") or "/"
        if path.startswith(_HEALTH_PATHS):
            response = self._h.health.answer(path, request.query, request.query.getall("exclude", ()))
            if response is not None:
                return response
        if path == "/version":
            return json_response(request, version_info(self._h.build))
        if path == "/metrics":
            return text_response(self._h.metrics.text().decode(), content_type="text/plain; version=0.0.4")
        if path.startswith("/openapi/"):
            return self._openapi(request, path)
        return self._discovery(request, path)

    def _discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        discovery = self._h.discovery
        parts = path.strip("/").split("/")
        if path in ("/api", "/apis"):
            aggregated = discovery_version(request.headers.get("Accept", ""))
            body = discovery.core(aggregated) if path == "/api" else discovery.groups(aggregated)
            content = "application/json"
            if aggregated:
                content += f";g=apidiscovery.k8s.io;v={aggregated};as=APIGroupDiscoveryList"
            etag = discovery.etag(body)
            if request.headers.get("If-None-Match") == etag:
                return web.Response(status=304, headers={"ETag": etag, "Vary": "Accept"})
            return json_response(request, body, content_type=content, headers={"ETag": etag, "Vary": "Accept"})
        document: bytes | None = None
        if parts[0] == "api" and len(parts) == 2:
            document = discovery.resources("", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            document = discovery.group(parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            document = discovery.resources(parts[1], parts[2])
        elif path == "/":
            return json_response(request, {"paths": self._paths()})
        if document is None:
            raise errors.no_such_resource()
        return json_response(request, document)

    def _paths(self) -> list[str]:
        groups = [g for g in self._h.registry.kinds.groups() if g]
        versions = [f"/apis/{g}/{v}" for g in groups for v in self._h.discovery.versions(g)]
        fixed = ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3"]
        return sorted([*fixed, "/readyz", "/version", *(f"/apis/{g}" for g in groups), *versions])

    def _openapi(self, request: web.BaseRequest, path: str) -> web.Response:
        docs = self._h.openapi
        if docs is None:
            raise errors.no_such_resource()
        if path == "/openapi/v2":
            content = openapi_type(request.headers.get("Accept", ""))
            document = docs.v2() if content == ACCEPTED else docs.v2_protobuf()
            headers = {"ETag": self._h.discovery.etag(document), "Vary": "Accept"}
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
            return json_response(request, document, content_type=content, headers=headers)
        if path == "/openapi/v3":
            return json_response(request, docs.v3_index())
        body = docs.v3(path.removeprefix("/openapi/v3/"))
        if body is None:
            raise errors.no_such_resource()
        caching = {"Cache-Control": "public, immutable"} if "hash" in request.query else {}
        return json_response(request, body, headers=caching)

    def _audit(
        self, request: web.BaseRequest, info: RequestInfo, user: ApiUser | None, code: int, seconds: float
    ) -> None:
        assert self._h.audit is not None
        self._h.audit(
            {
                "kind": "Event",
                "apiVersion": "audit.k8s.io/v1",
                "level": "Metadata",
                "auditID": str(uuid.uuid4()),
                "stage": "ResponseComplete",
                "requestURI": request.path_qs,
                "verb": info.verb,
                "user": {"username": user.name, "groups": list(user.groups)} if user else {},
                "sourceIPs": [request.remote or ""],
                "userAgent": request.headers.get("User-Agent", ""),
                "objectRef": _object_ref(info),
                "responseStatus": {"code": code},
                "latencySeconds": round(seconds, 6),
            }
        )


def _service_account(user: str) -> tuple[str, str]:
    """(namespace, name) of the service account with this user name; two empty strings for other users."""
    prefix = "system:serviceaccount:"
    if not user.startswith(prefix):
        return "", ""
    namespace, _, name = user.removeprefix(prefix).partition(":")
    return namespace, name


def _object_ref(info: RequestInfo) -> Mapping[str, str]:
    ref = {
        "resource": info.resource,
        "namespace": info.namespace,
        "name": info.name,
        "apiGroup": info.group,
        "apiVersion": info.version,
        "subresource": info.subresource,
    }
    return {k: v for k, v in ref.items() if v}
