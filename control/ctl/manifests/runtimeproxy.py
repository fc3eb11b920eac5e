"""The systemd units that koord-runtime-proxy runs as, one a backend (spec 08 §15). Data; writes deploy/ when asked.

    python -m control.ctl.manifests.runtimeproxy --out deploy/runtimeproxy           write them
    python -m control.ctl.manifests.runtimeproxy --out deploy/runtimeproxy --check   exit 1 if they differ

The proxy is root because the sockets of runtimes and of koordlet are root's own; as their owner it needs no capability.
It listens in /run/koord-runtimeproxy, reads hook registrations, talks to unix sockets, and serves metrics to this host.
Everything else is taken away. `deploy/runtimeproxy/node.sh` installs a unit; the binary's place and the kubelet are its
business. A node without its proxy has no runtime, so it comes back at once and however often.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from control import manifestfiles

UNIT = "koord-runtime-proxy.service"
BINARY = "/usr/local/bin/koord-runtime-proxy"
MORE_FLAGS = "/etc/default/koord-runtime-proxy"
"""May set KOORD_RUNTIME_PROXY_FLAGS."""

_MODULE = "control.ctl.manifests.runtimeproxy"
Section = Sequence[tuple[str, str]]

_RESTARTS: Section = (
    ("Restart", "always"),
    # with the proxy's own start, a node is without its runtime for less than a second
    ("RestartSec", "200ms"),
    # it tells when it listens; while the backend does not answer it tries for 30 s
    ("Type", "notify"),
    ("TimeoutStartSec", "60s"),
    # running calls get 5 s
    ("TimeoutStopSec", "10s"),
)

_LIMITS: Section = (
    ("LimitNOFILE", "1048576"),
    ("OOMScoreAdjust", "-999"),
    # 50 MB in use; room for messages of 16 MiB that are held for a hook
    ("MemoryMax", "512M"),
    ("TasksMax", "128"),
)

_FILES: Section = (
    ("ProtectSystem", "strict"),
    ("RuntimeDirectory", "koord-runtimeproxy"),
    ("RuntimeDirectoryMode", "0755"),
    ("RuntimeDirectoryPreserve", "restart"),
    ("ConfigurationDirectory", "runtime/hookserver.d"),
    ("ConfigurationDirectoryMode", "0755"),
    ("UMask", "0077"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateMounts", "yes"),
    ("PrivateDevices", "yes"),
    ("DevicePolicy", "closed"),
    ("ProtectProc", "invisible"),
    ("ProcSubset", "pid"),
)

_KERNEL: Section = (
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectHostname", "yes"),
)

_RIGHTS: Section = (
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("MemoryDenyWriteExecute", "yes"),
    ("KeyringMode", "private"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged @resources"),
    # a call that a library tries and can do without
    ("SystemCallErrorNumber", "EPERM"),
)

_NETWORK: Section = (
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
    ("IPAddressDeny", "any"),
    # metrics; a Prometheus elsewhere needs its address here, in a drop-in
    ("IPAddressAllow", "localhost"),
)


def unit(backend: str, flags: str) -> str:
    """The unit of a proxy in front of `backend`'s service."""
    sections: list[tuple[str, list[Section]]] = [
        (
            "Unit",
            [
                (
                    ("Description", "koord-runtime-proxy: asks koordlet before containers are made"),
                    ("After", f"{backend}.service"),
                    ("Wants", f"{backend}.service"),
                    ("Before", "kubelet.service"),
                    # never give up
                    ("StartLimitIntervalSec", "0"),
                )
            ],
        ),
        (
            "Service",
            [
                (
                    ("EnvironmentFile", f"-{MORE_FLAGS}"),
                    ("ExecStart", f"{BINARY} {flags} $KOORD_RUNTIME_PROXY_FLAGS"),
                ),
                _RESTARTS,
                _LIMITS,
                _FILES,
                _KERNEL,
                _RIGHTS,
                _NETWORK,
            ],
        ),
        ("Install", [(("WantedBy", "multi-user.target"),)]),
    ]
    parts = []
    for name, groups in sections:
        lines = ["\n".join(f"{key}={value}" for key, value in group) for group in groups]
        parts.append(f"[{name}]\n" + "\n\n".join(lines))
    return f"# Written by `python -m {_MODULE}`; edit that instead.\n" + "\n\n".join(parts) + "\n"


BACKENDS = {
    "containerd": (
        "--backend-runtime-mode=Containerd --remote-runtime-service-endpoint=/run/containerd/containerd.sock"
    ),
    "docker": "--backend-runtime-mode=Docker --remote-runtime-service-endpoint=/run/docker.sock",
}
"""Name of the backend's service and of the folder -> the proxy's flags."""


def texts() -> dict[str, str]:
    """File name -> content."""
    return {f"{backend}/{UNIT}": unit(backend, flags) for backend, flags in BACKENDS.items()}


def main(argv: list[str]) -> int:
    return manifestfiles.main(argv, texts(), _MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
