"""The systemd units in deploy/runtimeproxy."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy/runtimeproxy"
UNIT = "koord-runtime-proxy.service"
BINARY = "/usr/local/bin/koord-runtime-proxy"
BACKENDS = ("containerd", "docker")


def text(backend: str) -> str:
    """The unit of the proxy in front of `backend`."""
    return (FOLDER / backend / UNIT).read_text()
