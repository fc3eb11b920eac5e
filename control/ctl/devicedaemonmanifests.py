"""The object that koord-device-daemon is installed with (spec 08 §1.4). Data; no I/O but for writing deploy/.

    python -m control.ctl.devicedaemonmanifests --out deploy/device-daemon           write it
    python -m control.ctl.devicedaemonmanifests --out deploy/device-daemon --check   exit 1 if it differs

It asks the API server nothing, so it has no account. The namespace is deploy/manager's.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE, LABEL_SKIP_HOOK_SERVER

NAME = "koord-device-daemon"
IMAGE = "koordinator-py:latest"
INFOS = "/var/run/koordlet/xpu-device-infos"

_MODULE = "control.ctl.devicedaemonmanifests"
_HOST_PATHS: tuple[tuple[str, str, str, str, str], ...] = (
    # name, on the node, in the container, type, propagation
    ("host", "/", "/hostfs", "Directory", "HostToContainer"),
    ("sys", "/sys", "/host-sys/", "Directory", ""),
    ("dev", "/dev", "/dev/", "Directory", ""),
    ("infos", INFOS, INFOS, "DirectoryOrCreate", "Bidirectional"),
)


def daemonset() -> list[Object]:
    """One on every Linux node; vendors' tools take the whole machine to be theirs."""
    labels = {"koord-app": NAME}
    container: Object = {
        "name": NAME,
        "image": IMAGE,
        "command": [NAME],
        # a new version begins with the file of the one before it, so that no device is gone meanwhile
        "args": ["--keep-output", "--v=1"],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": {"privileged": True, "runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
        "volumeMounts": [
            {"name": name, "mountPath": inside, **({"mountPropagation": propagation} if propagation else {})}
            for name, _, inside, _, propagation in _HOST_PATHS
        ],
    }
    spec = {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": {
            "metadata": {"labels": {**labels, LABEL_SKIP_HOOK_SERVER: "true"}},
            "spec": {
                "automountServiceAccountToken": False,
                "priorityClassName": "system-node-critical",
                "hostNetwork": True,
                "hostPID": True,
                "hostIPC": True,
                "dnsPolicy": "ClusterFirstWithHostNet",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 10,
                "containers": [container],
                "volumes": [
                    {"name": name, "hostPath": {"path": path, "type": kind}} for name, path, _, kind, _ in _HOST_PATHS
                ],
            },
        },
    }
    meta = {"name": NAME, "namespace": KOORDINATOR_NAMESPACE, "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}]


FILES = {"daemonset.yaml": daemonset}


def texts() -> dict[str, str]:
    """File name -> content."""
    return manifestfiles.texts(FILES, _MODULE)


def main(argv: list[str]) -> int:
    return manifestfiles.main(argv, texts(), _MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
