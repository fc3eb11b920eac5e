"""Kubeconfig files: who the client is, where the server is, what to trust."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import yaml


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
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as f:
        yaml.safe_dump(config, f, sort_keys=False)
        f.flush()
        os.fsync(f.fileno())
    beside.replace(path)
