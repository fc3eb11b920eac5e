"""Writes kubeconfig files: the server's URL and CA, and the client's user and token."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from koordlet.app import atomicfile


def write_kubeconfig(path: Path, *, url: str, ca_pem: str, user: str, token: str) -> None:
    """Write with mode 0600, whole or not at all."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "koord",
                "cluster": {
                    "server": url,
                    "certificate-authority-data": base64.b64encode(ca_pem.encode()).decode(),
                },
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": f"{user}@koord", "context": {"cluster": "koord", "user": user}}],
        "current-context": f"{user}@koord",
    }
    atomicfile.write(path, yaml.safe_dump(config, sort_keys=False).encode())
