"""Objects and paths that several tables of requests use."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

CONTAINER = {"name": "c", "image": "busybox:1"}


def namespace(scenario: str) -> str:
    return "diff-" + scenario.replace(" ", "-")


def core(ns: str, resource: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{ns}/{resource}" + (f"/{name}" if name else "")


def group(api: str, ns: str, resource: str, name: str = "") -> str:
    return f"/apis/{api}/namespaces/{ns}/{resource}" + (f"/{name}" if name else "")


def config_map(name: str, labels: Json | None = None, **data: str) -> Json:
    meta: Json = {"name": name}
    if labels:
        meta["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod(name: str, **spec: Any) -> Json:
    meta = {"name": name, "labels": {"app": "a"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [CONTAINER], **spec}}


def template(**spec: Any) -> Json:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [CONTAINER], **spec}}


def workload(kind: str, name: str, **spec: Any) -> Json:
    body = {"selector": {"matchLabels": {"app": "a"}}, "template": template(), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}
