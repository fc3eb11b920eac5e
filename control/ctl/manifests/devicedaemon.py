"""The object that koord-device-daemon is installed with (spec 08 §1.4). Data; no I/O but for writing deploy/.

    python -m control.ctl.manifests.devicedaemon --out deploy/device-daemon           write it
    python -m control.ctl.manifests.devicedaemon --out deploy/device-daemon --check   exit 1 if it differs

It asks the API server nothing, so it has no account. The namespace is deploy/manager's.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.manifestfiles import HostPath, Object

NAME = "koord-device-daemon"
IMAGE = "koordinator-py:latest"
INFOS = "/var/run/koordlet/xpu-device-infos"

_MODULE = "control.ctl.manifests.devicedaemon"
_HOST_PATHS = (
    HostPath("host", "/", "/hostfs", propagation="HostToContainer"),
    HostPath("sys", "/sys", "/host-sys/"),
    HostPath("dev", "/dev", "/dev/"),
    HostPath("infos", INFOS, INFOS, "DirectoryOrCreate", "Bidirectional"),
)


def daemonset() -> list[Object]:
    """Vendors' tools take the whole machine to be theirs."""
    container: Object = {
        "name": NAME,
        "image": IMAGE,
        "command": [NAME],
        # a new version begins with the file of the one before it, so that no device is gone meanwhile
        "args": ["--keep-output", "--v=1"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": {"privileged": True, "runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
    }
    return manifestfiles.daemonset(
        container,
        _HOST_PATHS,
        spec={"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
        pod={"automountServiceAccountToken": False, "hostIPC": True, "terminationGracePeriodSeconds": 10},
    )


FILES = {"daemonset.yaml": daemonset}


def texts() -> dict[str, str]:
    """File name -> content."""
    return manifestfiles.texts(FILES, _MODULE)


def main(argv: list[str]) -> int:
    return manifestfiles.main(argv, texts(), _MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
