"""Creates the objects of `manifests` in the API server, and credentials for the agents. Can be repeated.

koordctl's own objects are applied server-side as `koordctl`. Objects that the manager writes too (its ConfigMap, which
users edit, and the webhook configurations) are only created when missing. Without a manager, NodeMetric and NodeSLO are
created instead, and the webhook configurations are deleted because no server would respond. A token lasts a year and is
renewed by any later `up`; clients re-read its file, so a renewal needs no restart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from control.ctl.errors import CtlError
from control.ctl.manifests import cluster as manifests
from control.ctl.node.state import NodeSettings
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.api.registry import BY_GVK
from koordlet.app import atomicfile
from koordlet.kube import Client, ClientConfig, Conflict, KubeError, NotFound, PatchKind

MANAGER = "koordctl"
TOKEN_LIFETIME_S = 365 * 24 * 3600
ESTABLISH_TIMEOUT_S = 20.0

_PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def path_of(obj: Mapping[str, Any]) -> str:
    """The URL path of an object of `manifests`."""
    version, kind, meta = obj["apiVersion"], obj["kind"], obj["metadata"]
    resource = BY_GVK.get((version, kind))
    if resource is not None:
        return resource.path(meta.get("namespace"), meta["name"])
    within = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
    return f"/apis/{version}/{within}{_PLURALS[kind]}/{meta['name']}"


async def apply(client: Client, obj: Object) -> None:
    """Server-side apply."""
    await client.raw(
        "PATCH",
        path_of(obj),
        params={"fieldManager": MANAGER, "force": "true"},
        body=obj,
        content_type=PatchKind.APPLY.value,
        repeatable=True,
    )


async def create_missing(client: Client, obj: Object) -> None:
    """Create it if it does not exist; an existing object is not changed."""
    try:
        await client.raw("GET", path_of(obj))
    except NotFound:
        try:
            await client.raw("POST", path_of(obj).rpartition("/")[0], params={"fieldManager": MANAGER}, body=obj)
        except Conflict:
            return  # another client created it between the two requests


async def delete(client: Client, obj: Object) -> None:
    """Delete it if it exists."""
    try:
        await client.raw("DELETE", path_of(obj))
    except NotFound:
        return


@dataclass(frozen=True, slots=True)
class Agent:
    """An account for which a kubeconfig is written."""

    account: str
    kubeconfig: Path


async def prepare(admin: Path, settings: NodeSettings, agents: list[Agent], *, manager: bool = True) -> None:
    """Create everything that a node needs in its API server; `manager`: whether a manager runs. Raises CtlError."""
    config = ClientConfig.load(admin, user_agent=MANAGER, qps=200, burst=200)
    node = settings.node_name
    try:
        async with Client(config) as client:
            if settings.bare:
                for obj in manifests.bare(node):
                    await apply(client, obj)
                (kubelet,) = (agent for agent in agents if agent.account == manifests.KUBELET)
                await _credentials(client, admin, kubelet, manifests.BARE_NAMESPACE)
                return
            crds = manifests.crds()
            await asyncio.gather(*(apply(client, crd) for crd in crds))
            for obj in manifests.base(node):
                await apply(client, obj)
            for obj in manifests.second(settings.second_node) if settings.second_node else ():
                await apply(client, obj)
            await _established(client, crds)
            seconds = {
                "report_seconds": settings.report_interval,
                "aggregate_seconds": settings.aggregate_duration,
            }
            if manager:
                for obj in (manifests.configuration(**seconds), *manifests.webhooks()):
                    await create_missing(client, obj)
            else:
                for obj in manifests.webhooks():
                    await delete(client, obj)
                await create_missing(client, manifests.node_metric(node, **seconds))
                await create_missing(client, manifests.node_slo(node))
            for agent in agents:
                await _credentials(client, admin, agent)
    except KubeError as error:
        raise CtlError(f"cannot create the cluster's base objects: {error}", "See logs/apiserver.log.") from error


async def _established(client: Client, crds: list[Object]) -> None:
    """Wait until every kind is served."""
    missing: list[str] = []
    for _ in range(round(ESTABLISH_TIMEOUT_S / 0.1)):
        missing = [crd["metadata"]["name"] for crd in crds if not await _is_established(client, crd)]
        if not missing:
            return
        await asyncio.sleep(0.1)
    raise CtlError(f"these definitions were not established within {ESTABLISH_TIMEOUT_S:g} s: {', '.join(missing)}")


async def _is_established(client: Client, crd: Object) -> bool:
    current = json.loads(await client.raw("GET", path_of(crd)))
    conditions = (current.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


async def _credentials(client: Client, admin: Path, agent: Agent, namespace: str = KOORDINATOR_NAMESPACE) -> None:
    """Request a token for the agent's account; write token file and kubeconfig."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{agent.account}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_LIFETIME_S},
    }
    response = json.loads(await client.raw("POST", path, body=request))
    agent.kubeconfig.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token_file = agent.kubeconfig.with_suffix(".token")
    atomicfile.write(token_file, response["status"]["token"].encode())
    atomicfile.write(agent.kubeconfig, kubeconfig(admin, agent.account, token_file))


def kubeconfig(admin: Path, user: str, token_file: Path) -> bytes:
    """The admin's kubeconfig for another user, whose token is read from a file."""
    document = yaml.safe_load(admin.read_text())
    document["users"] = [{"name": user, "user": {"tokenFile": str(token_file)}}]
    cluster = document["clusters"][0]["name"]
    document["contexts"] = [{"name": user, "context": {"cluster": cluster, "user": user}}]
    document["current-context"] = user
    return yaml.safe_dump(document, sort_keys=False).encode()
