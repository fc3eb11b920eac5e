"""Reads the installation of Koordinator that `koordctl migrate check` reports on."""

from __future__ import annotations

import json
from typing import Any

from control.ctl.errors import CtlError
from control.ctl.migrate.components import check_workload
from control.ctl.migrate.model import MigrationItem, MigrationReport
from control.ctl.migrate.objects import (
    check_bindings,
    check_crds,
    check_scheduler_config,
    check_slo_config,
    check_webhooks,
)
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import Client, KubeError, NotFound
from koordlet.kube.client import MAX_LIST_BYTES

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_APPS = f"/apis/apps/v1/namespaces/{KOORDINATOR_NAMESPACE}"
_CONFIG_MAPS = f"/api/v1/namespaces/{KOORDINATOR_NAMESPACE}/configmaps"


async def check_cluster(client: Client) -> MigrationReport:
    """Everything that can be seen through the API server. Raises CtlError."""
    workloads = [*await _items(client, f"{_APPS}/deployments"), *await _items(client, f"{_APPS}/daemonsets")]
    slo_config = await _data(client, "slo-controller-config")
    scheduler_config = await _data(client, "koord-scheduler-config")
    bindings = [
        *await _items(client, f"{_RBAC}/clusterrolebindings", "ClusterRoleBinding"),
        *await _items(client, f"{_RBAC}/namespaces/{KOORDINATOR_NAMESPACE}/rolebindings", "RoleBinding"),
    ]
    webhooks = [
        *await _items(client, f"{_WEBHOOKS}/mutatingwebhookconfigurations"),
        *await _items(client, f"{_WEBHOOKS}/validatingwebhookconfigurations"),
    ]
    items: list[MigrationItem] = [*check_crds(await _items(client, _CRDS)), *check_slo_config(slo_config)]
    text = None if scheduler_config is None else next(iter(scheduler_config.values()), "")
    items += check_scheduler_config(text)
    for workload in workloads:
        items += check_workload(workload)
    items += [*check_bindings(bindings), *check_webhooks(webhooks)]
    return MigrationReport(items)


async def _items(client: Client, path: str, kind: str = "") -> list[dict[str, Any]]:
    try:
        items = json.loads(await client.raw("GET", path, max_bytes=MAX_LIST_BYTES)).get("items") or []
    except KubeError as error:
        raise CtlError(f"cannot list {path.rsplit('/', 1)[1]}: {error}", "The check needs a cluster reader.") from error
    return [{"kind": kind, **item} if kind else item for item in items]


async def _data(client: Client, name: str) -> dict[str, str] | None:
    """The data of a ConfigMap; None if it does not exist."""
    try:
        return dict(json.loads(await client.raw("GET", f"{_CONFIG_MAPS}/{name}")).get("data") or {})
    except NotFound:
        return None
    except KubeError as error:
        raise CtlError(f"cannot read ConfigMap {name}: {error}", "The check needs a cluster reader.") from error
