"""Command line of koord-runtime-proxy: Koordinator's flags with their defaults (spec 08 §7), and additional ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions

CONTAINERD = "Containerd"
DOCKER = "Docker"


@dataclass
class ProxyOptions(LoggingOptions):
    """All flags. Sockets may be written with a `unix://` prefix."""

    endpoint: str = flag(
        "/var/run/koord-runtimeproxy/runtimeproxy.sock", "socket to listen on", name="koord-runtimeproxy-endpoint"
    )
    backend: str = flag(
        "/var/run/containerd/containerd.sock", "socket of the container runtime", name="remote-runtime-service-endpoint"
    )
    mode: str = flag(
        CONTAINERD, "API of the container runtime", name="backend-runtime-mode", choices=(CONTAINERD, DOCKER)
    )
    skip_key: str = flag(
        "runtimeproxy.koordinator.sh/skip-hookserver",
        "label key that exempts a pod from hooks; empty: no exemption",
        name="runtime-hook-server-key",
    )
    skip_value: str = flag("true", "value of that label", name="runtime-hook-server-val")
    image_service: str = flag(
        "",
        "no effect",
        name="remote-image-service-endpoint",
        deprecated="image calls go to the same socket as all others",
    )
    hook_timeout: Duration = flag("2s", "maximum time for a hook server's response", minimum=0.01)
    hook_servers: str = flag(
        "/etc/runtime/hookserver.d", "directory of the hook servers' registration files", name="hook-server-dir"
    )
    backend_timeout: Duration = flag("30s", "how long to wait for the runtime at start", minimum=0)
    stop_timeout: Duration = flag("5s", "how long a stop waits for running calls", minimum=0)
    metrics_addr: str = flag("127.0.0.1:9318", "address of /metrics and /healthz; empty: not served")

    def __post_init__(self) -> None:
        """Raises FlagError for invalid values."""
        _ = self.endpoint_path, self.backend_path, self.metrics_at

    @property
    def endpoint_path(self) -> Path:
        return _socket("koord-runtimeproxy-endpoint", self.endpoint)

    @property
    def backend_path(self) -> Path:
        return _socket("remote-runtime-service-endpoint", self.backend)

    @property
    def metrics_at(self) -> tuple[str | None, int] | None:
        """Host and port; None: no metrics page."""
        return _address(self.metrics_addr) if self.metrics_addr else None


def _socket(name: str, text: str) -> Path:
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise FlagError(f'invalid value "{text}" for --{name}: must be the absolute path of a socket')
    return Path(path)


def _address(text: str) -> tuple[str | None, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise FlagError(f'invalid value "{text}" for --metrics-addr: must be host:port')
    return host.strip("[]") or None, int(port)
