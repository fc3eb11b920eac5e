"""The initial objects of a cluster; missing ones are created at each start.

Namespaces, the `kubernetes` Service with its endpoints, the two system priority classes, the APIServices, and the
default roles of `auth.bootstrap`. Existing objects are not changed, so that an administrator's changes stay.
"""

from __future__ import annotations

from typing import Any

from control.standalone import errors
from control.standalone.auth import bootstrap as default_roles
from control.standalone.kinds import Kinds, version_priority
from control.standalone.registry import ObjectRegistry, WriteOptions

Json = dict[str, Any]

AUTOMANAGED = "kube-aggregator.kubernetes.io/automanaged"
"""Label of the APIServices that the server itself creates."""
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_OPTIONS = WriteOptions(field_manager="kube-apiserver")
_PRIORITIES = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


async def bootstrap(registry: ObjectRegistry, host: str, port: int, service_ip: str) -> None:
    """Create the missing objects. Runs before the server reports ready."""
    for name in NAMESPACES:
        await _ensure(registry, "/namespaces", None, {"metadata": {"name": name}})
    for name, (value, description) in _PRIORITIES.items():
        body = {"metadata": {"name": name}, "value": value, "description": description}
        await _ensure(registry, "scheduling.k8s.io/priorityclasses", None, body)
    for key, role in default_roles.objects():
        await _ensure(registry, key, role["metadata"].get("namespace"), role)
    await _kubernetes_service(registry, host, port, service_ip)
    await sync_api_services(registry)


async def _ensure(registry: ObjectRegistry, key: str, ns: str | None, body: Json) -> None:
    if registry.find(key, ns, body["metadata"]["name"]) is not None:
        return
    try:
        await registry.create(key, ns, body, options=_OPTIONS)
    except errors.StatusError as error:
        if error.reason != "AlreadyExists":
            raise


async def _kubernetes_service(registry: ObjectRegistry, host: str, port: int, service_ip: str) -> None:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    service: Json = {
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {
            "clusterIP": service_ip,
            "clusterIPs": [service_ip],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }
    await _ensure(registry, "/services", "default", service)
    subsets = [{"addresses": [{"ip": host}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]
    meta = {"name": "kubernetes", "namespace": "default"}
    await _put(registry, "/endpoints", {"metadata": dict(meta), "subsets": subsets})
    slice_labels = {"kubernetes.io/service-name": "kubernetes"}
    endpoint_slice = {
        "metadata": {**meta, "labels": slice_labels},
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await _put(registry, "discovery.k8s.io/endpointslices", endpoint_slice)


async def _put(registry: ObjectRegistry, key: str, body: Json) -> None:
    """Create or replace: the server's address may have changed since the last start."""
    meta = body["metadata"]
    if registry.find(key, meta["namespace"], meta["name"]) is None:
        await registry.create(key, meta["namespace"], body, options=_OPTIONS)
    else:
        await registry.update(key, meta["namespace"], meta["name"], body, options=_OPTIONS)


async def sync_api_services(registry: ObjectRegistry) -> None:
    """Create an APIService for each served group version; delete those of groups that aren't served any more."""
    key = "apiregistration.k8s.io/apiservices"
    desired = api_services(registry.kinds)
    for obj in registry.list(key):
        automatic = AUTOMANAGED in (obj["metadata"].get("labels") or {})
        if automatic and obj["metadata"]["name"] not in desired:
            await registry.delete(key, None, obj["metadata"]["name"])
    for name, body in desired.items():
        if registry.find(key, None, name) is None:
            await registry.create(key, None, body, options=_OPTIONS)


def api_services(kinds: Kinds) -> dict[str, Json]:
    services: dict[str, Json] = {}
    for group, members in kinds.groups().items():
        versions = sorted({v for k in members for v in k.versions}, key=version_priority)
        for rank, version in enumerate(versions):
            name = f"{version}.{group}"
            services[name] = {
                "metadata": {"name": name, "labels": {AUTOMANAGED: "onstart"}},
                "spec": {
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 18000 if not group else 1000,
                    "versionPriority": 100 - rank,
                },
            }
    return services
