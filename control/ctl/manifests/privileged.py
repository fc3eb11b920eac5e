"""koordlet as a privileged container, for nodes on which the capabilities of deploy/koordlet do not suffice.

    python -m control.ctl.manifests.privileged --out deploy/koordlet-privileged           write it
    python -m control.ctl.manifests.privileged --out deploy/koordlet-privileged --check   exit 1 if it differs

It changes the DaemonSet of deploy/koordlet, and so does the chart's value `koordlet.privileged`: the container's
securityContext, and mounts of koordlet (bpf, resctrl) that become visible on the node, which the API server accepts of
privileged containers only. docs/security.md lists the nodes that need it. Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.ctl.manifests import koordlet
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE

PRIVILEGED: Object = {"privileged": True, "runAsUser": 0}
"""The securityContext that replaces `koordlet.CONFINED`."""
CONFINED_PROPAGATION, PROPAGATION = "HostToContainer", "Bidirectional"
"""Mount propagation of a container without and with `privileged`."""

_MODULE = "control.ctl.manifests.privileged"


def propagating() -> list[Object]:
    """The mounts of deploy/koordlet whose propagation differs."""
    (daemonset,) = koordlet.daemonset()
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    return [mount for mount in container["volumeMounts"] if mount.get("mountPropagation") == CONFINED_PROPAGATION]


def patch() -> Object:
    """The strategic merge patch."""
    container = {
        "name": koordlet.ACCOUNT,
        "securityContext": {"$patch": "replace", **PRIVILEGED},
        "volumeMounts": [{**mount, "mountPropagation": PROPAGATION} for mount in propagating()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": koordlet.ACCOUNT, "namespace": KOORDINATOR_NAMESPACE},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def texts() -> dict[str, str]:
    """File name -> content."""
    return manifestfiles.overlay(_MODULE, "../koordlet", patch())


if __name__ == "__main__":
    sys.exit(manifestfiles.main(sys.argv[1:], texts(), _MODULE))
