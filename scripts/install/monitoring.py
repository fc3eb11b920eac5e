"""Writes deploy/monitoring: PodMonitors of the components, and the rules of deploy/prometheus as PrometheusRules.

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
ENDPOINTS = {
    "koordlet": ("metrics", "/metrics"),
    "koord-manager": ("metrics", "/all-metrics"),
    "koord-scheduler": ("secure", "/metrics"),
    "koord-descheduler": ("secure", "/metrics"),
}
"""Label koord-app, which becomes the job -> port name and path."""
SECURE = {
    "scheme": "https",
    "tlsConfig": {"insecureSkipVerify": True},
    "authorization": {"credentials": {"name": "koord-scheduler-metrics", "key": "token"}},
}
"""Of the port `secure`: a self-signed certificate, and the token of an account that may get /metrics, in a Secret that
the cluster's administrator creates."""


def pod_monitors() -> list[Object]:
    """One per component; the job is the one that the rules name."""
    return [
        _object(
            "PodMonitor",
            app,
            {
                "jobLabel": "koord-app",
                "selector": {"matchLabels": {"koord-app": app}},
                "podMetricsEndpoints": [{"port": port, "path": path, **(SECURE if port == "secure" else {})}],
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


FILES = {"podmonitors.yaml": pod_monitors, "rules.yaml": rules}


def main(argv: list[str]) -> int:
    contents = manifestfiles.texts(FILES, MODULE, "koordinator")
    return manifestfiles.main(["--out", str(ROOT / "deploy/monitoring"), *argv], contents, MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
