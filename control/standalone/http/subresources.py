"""Subresources with their own rules: scale, binding, eviction, token, finalize, and those of the kubelet.

`status`, `finalize`, `resize` and `ephemeralcontainers` are writes of the object that may change one part of it
(`strategy.isolate`). The others convert between their own kind and the object, or forward to the kubelet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from control.standalone import errors
from control.standalone.deletion import DeletionOptions
from control.standalone.http.columns import selector_text
from control.standalone.http.connect import PodStreams
from control.standalone.http.connectoptions import CONNECTS
from control.standalone.http.jsonpath import compile_path
from control.standalone.http.kubelet import KubeletProxy
from control.standalone.http.negotiate import decode_json
from control.standalone.http.requestinfo import RequestInfo
from control.standalone.http.resources import PATCHES, ResourceHandlers, body_object, created, read_body, write_options
from control.standalone.http.responses import json_response
from control.standalone.kinds import POD, ResourceKind, ScaleSpec
from control.standalone.patch import patches
from control.standalone.policyinterfaces import ApiUser
from control.standalone.registry import ObjectRegistry

Json = dict[str, Any]
EvictionGate = Callable[[ObjectRegistry, Json, bool], Awaitable[None]]
TokenIssuer = Callable[[Json, Json], Json]

_PARTS = ("status", "finalize", "resize", "ephemeralcontainers")


class SubresourceHandlers:
    """`gate` rejects evictions (429); `issue` creates a token from the service account and the TokenRequest."""

    def __init__(
        self,
        registry: ObjectRegistry,
        resources: ResourceHandlers,
        kubelet: KubeletProxy,
        streams: PodStreams,
        *,
        gate: EvictionGate,
        issue: TokenIssuer | None,
    ) -> None:
        self._registry = registry
        self._resources = resources
        self._kubelet = kubelet
        self._streams = streams
        self._gate = gate
        self._issue = issue

    async def handle(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.StreamResponse:
        if info.subresource not in kind.all_subresources:
            raise errors.no_such_resource()
        if info.subresource in _PARTS and info.verb in ("get", "update", "patch"):
            return await self._resources.handle(request, info, kind, user)
        if info.subresource == "scale" and info.verb in ("get", "update", "patch"):
            return await self._scale(request, info, kind, user)
        if info.verb == "create" and info.subresource in ("binding", "eviction", "token"):
            handler = {"binding": self.bind, "eviction": self._evict, "token": self._token}[info.subresource]
            return await handler(request, info, user)
        if info.subresource == "log" and info.verb == "get":
            return await self._kubelet.logs(request, info)
        if info.subresource == "proxy" and kind.key == "/nodes":
            return await self._kubelet.node(request, info)
        if info.subresource in CONNECTS:
            return await self._streams.handle(request, info, user)
        if info.subresource == "proxy":
            message = f"{kind.plural}/{info.subresource} is not served by this API server"
            raise errors.StatusError(501, "NotImplemented", message)
        raise errors.method_not_allowed()

    async def bind(self, request: web.BaseRequest, info: RequestInfo, user: ApiUser) -> web.Response:
        """POST pods/NAME/binding, or bindings: assign a pod to a node, once."""
        options = replace(write_options(request, info), subresource="binding")
        body = await body_object(request)
        name = info.name or (body.get("metadata") or {}).get("name") or ""
        if ((body.get("metadata") or {}).get("name") or name) != name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        meta = {**(body.get("metadata") or {}), "name": name, "namespace": info.namespace}
        body = await self._registry.admit(POD, {**body, "metadata": meta}, user, options)
        meta, target = body.get("metadata") or {}, body.get("target") or {}
        node = target.get("name") or ""
        if not node:
            cause = errors.FieldError("FieldValueRequired", "target.name", "Required value")
            raise errors.invalid("", "Binding", name, [cause])
        if target.get("kind") not in (None, "", "Node"):
            text = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
            raise errors.invalid(
                "", "Binding", name, [errors.FieldError("FieldValueNotSupported", "target.kind", text)]
            )

        def assign(pod: Json) -> Json:
            if meta.get("uid") and meta["uid"] != pod["metadata"]["uid"]:
                uid = pod["metadata"]["uid"]
                why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
                raise errors.conflict("", "pods/binding", name, why)
            spec = pod.setdefault("spec", {})
            if pod["metadata"].get("deletionTimestamp"):
                raise errors.conflict(
                    "", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
                )
            if spec.get("nodeName"):
                raise errors.conflict(
                    "", "pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"'
                )
            if spec.get("schedulingGates"):
                raise errors.conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
            spec["nodeName"] = node
            for field in ("annotations", "labels"):
                if meta.get(field):
                    pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **meta[field]}
            conditions = pod.setdefault("status", {}).setdefault("conditions", [])
            conditions[:] = [c for c in conditions if c.get("type") != "PodScheduled"]
            now = self._resources.timestamp()
            conditions.append(
                {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
            )
            return pod

        await self._registry.modify(POD, info.namespace, name, assign, user, options)
        return json_response(request, created(), 201)

    async def _evict(self, request: web.BaseRequest, info: RequestInfo, user: ApiUser) -> web.Response:
        """POST pods/NAME/eviction: delete, if the disruption budgets allow it."""
        body = await body_object(request)
        if ((body.get("metadata") or {}).get("name") or info.name) != info.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        delete_options = body.get("deleteOptions") or {}
        query_dry = request.query.get("dryRun") == "All"
        preconditions = delete_options.get("preconditions") or {}
        options = DeletionOptions(
            delete_options.get("gracePeriodSeconds"),
            delete_options.get("propagationPolicy"),
            preconditions.get("uid"),
            preconditions.get("resourceVersion"),
            query_dry or "All" in (delete_options.get("dryRun") or []),
        )
        pod = self._registry.get(POD, info.namespace, info.name)
        finished = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")
        if not finished and not pod["metadata"].get("deletionTimestamp"):
            await self._gate(self._registry, pod, options.dry_run)
        await self._registry.delete(POD, info.namespace, info.name, user, options)
        return json_response(request, created(), 201)

    async def _token(self, request: web.BaseRequest, info: RequestInfo, user: ApiUser) -> web.Response:
        body = await body_object(request)
        account = self._registry.get("/serviceaccounts", info.namespace, info.name)
        if self._issue is None:
            raise errors.internal("no token issuer is configured")
        return json_response(request, self._issue(account, body), 201)

    async def _scale(
        self, request: web.BaseRequest, info: RequestInfo, kind: ResourceKind, user: ApiUser
    ) -> web.Response:
        assert kind.scale is not None
        rule = kind.scale
        live = self._registry.get(kind.key, info.namespace or None, info.name, info.version)
        if info.verb == "get":
            return json_response(request, scale_of(kind, live))
        options = write_options(request, info)
        new_scale = await (self._scale_put(request) if info.verb == "update" else self._scale_patch(request))

        def change(obj: Json) -> Json:
            scale = new_scale(scale_of(kind, obj))
            sent_rv = (scale.get("metadata") or {}).get("resourceVersion")
            if sent_rv and sent_rv != obj["metadata"]["resourceVersion"]:
                raise errors.conflict(kind.group, kind.plural, info.name)
            replicas = (scale.get("spec") or {}).get("replicas", 0)
            if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
                text = f"Invalid value: {replicas}: must be greater than or equal to 0"
                cause = errors.FieldError("FieldValueInvalid", "spec.replicas", text)
                raise errors.invalid("autoscaling", "Scale", info.name, [cause])
            _set_path(obj, rule.spec_replicas, replicas)
            return obj

        stored = await self._registry.modify(kind.key, info.namespace or None, info.name, change, user, options)
        return json_response(request, scale_of(kind, stored))

    async def _scale_put(self, request: web.BaseRequest) -> Callable[[Json], Json]:
        new_scale = await body_object(request)
        return lambda scale: new_scale

    async def _scale_patch(self, request: web.BaseRequest) -> Callable[[Json], Json]:
        content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        patch_kind = PATCHES.get(content_type)
        body: Any = decode_json(await read_body(request))
        if patch_kind in (None, "apply"):
            raise errors.unsupported_media_type(", ".join(list(PATCHES)[:3]))
        if patch_kind == "json":
            return lambda scale: patches.json(scale, body)
        return lambda scale: patches.merge(scale, body)


def scale_of(kind: ResourceKind, obj: Mapping[str, Any]) -> Json:
    """The autoscaling/v1 Scale of an object."""
    rule = kind.scale or ScaleSpec()
    meta = obj["metadata"]
    identity_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    spec, status = _first(obj, rule.spec_replicas), _first(obj, rule.status_replicas)
    scale: Json = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {k: meta[k] for k in identity_fields if k in meta},
        "spec": {"replicas": spec if spec is not None else (0 if kind.custom else 1)},
        "status": {"replicas": status or 0},
    }
    selector = _first(obj, rule.selector) if kind.custom and rule.selector else None
    if not kind.custom:
        label_selector = (obj.get("spec") or {}).get("selector")
        selector = selector_text(label_selector) if label_selector else None
    if selector:
        scale["status"]["selector"] = str(selector)
    return scale


def _first(obj: Any, path: str) -> Any:
    values = compile_path(path)(obj)
    return values[0] if values else None


def _set_path(obj: Json, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value
