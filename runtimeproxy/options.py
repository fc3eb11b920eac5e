"""koord-runtime-proxy's command line: Koordinator's flags with their defaults (spec 08 §7), and ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions

CONTAINERD, DOCKER = "Containerd", "Docker"


@dataclass
class Options(LoggingOptions):
    """Everything that can be told on the command line. Sockets may be written with `unix://`."""

    endpoint: str = flag(
        "koord-runtimeproxy-endpoint", "/var/run/koord-runtimeproxy/runtimeproxy.sock", "socket to listen on"
    )
    backend: str = flag(
        "remote-runtime-service-endpoint", "/var/run/containerd/containerd.sock", "socket of the container runtime"
    )
    mode: str = flag(
        "backend-runtime-mode", CONTAINERD, "what the container runtime speaks", choices=(CONTAINERD, DOCKER)
    )
    skip_key: str = flag(
        "runtime-hook-server-key",
        "runtimeproxy.koordinator.sh/skip-hookserver",
        "label that exempts a pod from hooks; empty: none does",
    )
    skip_value: str = flag("runtime-hook-server-val", "true", "value of that label")
    image_service: str = flag(
        "remote-image-service-endpoint", "", "no effect", deprecated="calls for images go where all others go"
    )
    hook_timeout: Duration = flag("hook-timeout", "2s", "a hook that takes longer has failed", minimum=0.01)
    hook_servers: str = flag("hook-server-dir", "/etc/runtime/hookserver.d", "directory of hook servers' registrations")
    backend_timeout: Duration = flag(
        "backend-timeout", "30s", "how long to try for a runtime that does not answer, at start", minimum=0
    )
    stop_timeout: Duration = flag("stop-timeout", "5s", "how long a stop waits for calls under way", minimum=0)
    metrics_addr: str = flag("metrics-addr", "127.0.0.1:9318", "address of /metrics and /healthz; empty: none")

    def __post_init__(self) -> None:
        """Raises FlagError for what can't be used."""
        _ = self.endpoint_path, self.backend_path, self.metrics_at

    @property
    def endpoint_path(self) -> Path:
        return _socket("koord-runtimeproxy-endpoint", self.endpoint)

    @property
    def backend_path(self) -> Path:
        return _socket("remote-runtime-service-endpoint", self.backend)

    @property
    def metrics_at(self) -> tuple[str | None, int] | None:
        """Host and port; None: no page."""
        return _address(self.metrics_addr) if self.metrics_addr else None


def _socket(name: str, text: str) -> Path:
    path = text.removeprefix("unix://")
    if not path.startswith("/"):
        raise FlagError(f'invalid value "{text}" for --{name}: want the absolute path of a socket')
    return Path(path)


def _address(text: str) -> tuple[str | None, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise FlagError(f'invalid value "{text}" for --metrics-addr: want host:port')
    return host.strip("[]") or None, int(port)
