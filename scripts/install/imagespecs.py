"""What the container images hold. Data."""

from __future__ import annotations

from dataclasses import dataclass

from control import manifestfiles


@dataclass(frozen=True)
class ImageSpec:
    """An image: Debian packages, Python distributions, packages of this project and console scripts. Dependencies are
    added."""

    target: str
    """Folder of the file tree."""
    name: str
    account: str
    """User and group of the processes."""
    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    product: tuple[str, ...]
    commands: tuple[str, ...]


_PYTHON = ("base-files", "coreutils", "libc-bin", "libstdc++6", "python3")
_SERVER = ("aiohttp", "cryptography", "httptools", "msgspec", "numpy", "prometheus-client", "pyyaml", "uvloop")

CONTROL_PLANE = ImageSpec(
    target="control-plane",
    name=manifestfiles.CONTROL_PLANE_IMAGE,
    account="65532:65532",
    packages=_PYTHON,
    distributions=(*_SERVER, "cel-python"),
    product=("koordlet", "control"),
    commands=("koord-manager", "koord-scheduler", "koord-descheduler"),
)
NODE = ImageSpec(
    target="node",
    name=manifestfiles.NODE_IMAGE,
    account="0:0",  # kernel settings
    # iptables and ipset: network bandwidth; a shell: `kubectl exec` on a node that has a problem
    packages=(*_PYTHON, "dash", "ipset", "iptables", "libbpf1", "procps"),
    distributions=(
        *_SERVER, "click", "google-re2", "grpcio", "hpack", "nvidia-ml-py", "protobuf", "rich", "textual",
    ),
    product=("koordlet", "control", "runtimeproxy", "devicedaemon"),
    commands=("koordlet", "koord-device-daemon", "koord-runtime-proxy", "koordctl"),
)  # fmt: skip
SPECS = (CONTROL_PLANE, NODE)
