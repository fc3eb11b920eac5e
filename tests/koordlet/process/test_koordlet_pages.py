"""Callers of a koordlet's pages under the roles of deploy/: only health is open to all callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from control.ctl.manifests import koordlet as manifests
from control.manager import manifests as manager
from control.manager.manifests import VIEW_PAGES
from koordlet.api.encoding import crdgen
from koordlet.api.names import PAGES_AUDIENCE
from scripts.install import monitoring
from tests.koordlet.process.cluster import NODE, Api, Kubelet, https_status
from tests.koordlet.process.patience import until
from tests.ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]

SYSTEM = "/api/v1/namespaces/koordinator-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "ServiceAccount": f"{SYSTEM}/serviceaccounts",
    "Secret": f"{SYSTEM}/secrets",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
}
METRICS = ("/metrics", "/internal-metrics", "/external-metrics")
PAGES = ("/top", "/enforcement")
HEALTH = ("/healthz", "/livez", "/readyz")


def token(api: Api, account: str, *audiences: str) -> str:
    spec = {"expirationSeconds": 3600, **({"audiences": list(audiences)} if audiences else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    text: str = api.call("POST", f"{SYSTEM}/serviceaccounts/{account}/token", body)["status"]["token"]
    return text


def install(api: Api) -> None:
    """CRDs, the Node, koordlet's role, the readers of deploy/monitoring, and an account for koordlet's pages."""
    for crd in crdgen.documents().values():
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "koordinator-system"}})
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    view = [obj for obj in manager.view() if obj["metadata"]["name"] == VIEW_PAGES and obj["kind"] == "ClusterRole"]
    for obj in (*manifests.rbac(), *monitoring.access(), *view):
        api.call("POST", KINDS[obj["kind"]], obj)
    for account in ("operator", "tenant"):
        api.call("POST", KINDS["ServiceAccount"], {"metadata": {"name": account}})
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": "koordinator-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": VIEW_PAGES}
    binding = {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]}
    api.call("POST", KINDS["ClusterRoleBinding"], binding)


def test_only_health_is_for_everybody(trees: Any, views: Any, koordlets: Any, tmp_path: Path) -> None:
    api = Api(tmp_path / "api", free_port())
    api.start()
    kubelet = Kubelet(tmp_path)
    try:
        until(api.ready, "the API server")
        install(api)
        view = views(trees())
        document = yaml.safe_load(api.kubeconfig.read_text())
        document["users"] = [{"name": "koordlet", "user": {"token": token(api, manifests.ACCOUNT)}}]
        document["contexts"][0]["context"]["user"] = "koordlet"
        kubeconfig = view.scratch / "koordlet.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(document))
        koordlet = koordlets(
            view, f"--kubeconfig={kubeconfig}", "--probes=off", "--page-authorization=delegated",
            "--feature-gates=AuditEventsHTTPHandler=true", standalone=False,
        )  # fmt: skip
        port = koordlet.port
        until(lambda: https_status(port, "/healthz") == 200, "health over TLS")
        tokens = {name: token(api, name) for name in (monitoring.METRICS_READER, "operator", "tenant")}
        tokens |= {"nobody": "", "invented": "invented"}
        tokens |= {name: token(api, "operator", name) for name in (PAGES_AUDIENCE, "vault")}
        expected = {
            **{(monitoring.METRICS_READER, path): 200 if path in METRICS else 403 for path in (*METRICS, *PAGES)},
            **{("operator", path): 200 if path in PAGES else 403 for path in (*METRICS, *PAGES)},
            **{(caller, path): 403 for caller in ("tenant", "nobody") for path in (*METRICS, *PAGES)},
            **{(PAGES_AUDIENCE, path): 200 if path in PAGES else 403 for path in (*METRICS, *PAGES)},
            **{(caller, path): 401 for caller in ("invented", "vault") for path in (*METRICS, *PAGES)},
        }
        assert {key: https_status(port, key[1], tokens[key[0]]) for key in expected} == expected, koordlet.log[-3000:]
        statuses = {name: https_status(api.port, "/version", tokens[name]) for name in ("operator", PAGES_AUDIENCE)}
        assert statuses == {"operator": 200, PAGES_AUDIENCE: 401}, "who receives it cannot use it at the API server"
        assert all(https_status(port, path) in (200, 503) for path in HEALTH)
        assert koordlet.terminate() == 0
    finally:
        kubelet.close()
        api.kill()
