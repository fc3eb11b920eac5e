"""Writes deploy/monitoring: who may read metrics, PodMonitors of the components, and the rules of
deploy/prometheus as PrometheusRules.

python -m scripts.install.monitoring            write them
python -m scripts.install.monitoring --check    exit 1 if they differ
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from control import manifestfiles
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE

ROOT = Path(__file__).resolve().parents[2]
MODULE = "scripts.install.monitoring"
_RBAC = "rbac.authorization.k8s.io"
ENDPOINTS = {
    "koordlet": ("metrics", "/metrics"),
    "koord-manager": ("metrics", "/all-metrics"),
    "koord-scheduler": ("secure", "/metrics"),
    "koord-descheduler": ("secure", "/metrics"),
}
"""Label koord-app, which becomes the job -> port name and path."""
METRICS_READER = "koordinator-metrics-reader"
METRICS_PATHS = ["/metrics", "/metrics/slis", "/internal-metrics", "/external-metrics", "/all-metrics"]
SECURE = {
    "scheme": "https",
    "tlsConfig": {"insecureSkipVerify": True},
    "authorization": {"credentials": {"name": METRICS_READER, "key": "token"}},
}
"""The certificates are self-signed. Their owner cannot be verified, so the token is of an account that may only read
metrics."""


def access() -> list[Object]:
    """A role, an account and its token for Prometheus."""
    own = {"name": METRICS_READER, "namespace": KOORDINATOR_NAMESPACE}
    account = {"kind": "ServiceAccount", **own}
    token = {**own, "annotations": {"kubernetes.io/service-account.name": METRICS_READER}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own},
        {"apiVersion": "v1", "kind": "Secret", "metadata": token, "type": "kubernetes.io/service-account-token"},
        _role(METRICS_READER, METRICS_PATHS),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": METRICS_READER},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": METRICS_READER},
            "subjects": [account],
        },
    ]


def _role(name: str, paths: list[str]) -> Object:
    rules = [{"nonResourceURLs": paths, "verbs": ["get"]}]
    return {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def pod_monitors() -> list[Object]:
    """One per component; the job is the one that the rules name."""
    return [
        _object(
            "PodMonitor",
            app,
            {
                "jobLabel": "koord-app",
                "selector": {"matchLabels": {"koord-app": app}},
                "podMetricsEndpoints": [{"port": port, "path": path, **SECURE}],
            },
        )
        for app, (port, path) in ENDPOINTS.items()
    ]


def rules() -> list[Object]:
    """One per file of deploy/prometheus."""
    files = sorted((ROOT / "deploy/prometheus").glob("*.rules.yaml"))
    return [
        _object("PrometheusRule", file.name.removesuffix(".rules.yaml"), yaml.safe_load(file.read_text()))
        for file in files
    ]


def _object(kind: str, name: str, spec: Object) -> Object:
    meta = {"name": name, "namespace": KOORDINATOR_NAMESPACE}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": meta, "spec": spec}


FILES = {"access.yaml": access, "podmonitors.yaml": pod_monitors, "rules.yaml": rules}


def main(argv: list[str]) -> int:
    contents = manifestfiles.texts(FILES, MODULE, "koordinator")
    return manifestfiles.main(["--out", str(ROOT / "deploy/monitoring"), *argv], contents, MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
