"""koordlet as a privileged container, for nodes on which the capabilities of deploy/koordlet do not suffice.

    python -m control.ctl.manifests.privileged --out deploy/koordlet-privileged           write it
    python -m control.ctl.manifests.privileged --out deploy/koordlet-privileged --check   exit 1 if it differs

It changes the DaemonSet of deploy/koordlet, and so does the chart's value `koordlet.privileged`: the container's
securityContext, and mounts of koordlet (bpf, resctrl) that become visible on the node, which the API server accepts of
privileged containers only. docs/security.md lists the nodes that need it. Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

import yaml

from control import manifestfiles
from control.ctl.manifests import koordlet
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE

PRIVILEGED: Object = {"privileged": True, "runAsUser": 0}
"""The securityContext that replaces `koordlet.CONFINED`."""
CONFINED_PROPAGATION, PROPAGATION = "HostToContainer", "Bidirectional"
"""Mount propagation of a container without and with `privileged`."""

_MODULE = "control.ctl.manifests.privileged"
_PATCH = "daemonset.yaml"


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
    header = f"# Written by `python -m {_MODULE}`; edit that instead.\n"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../koordlet"],
        "patches": [{"path": _PATCH}],
    }
    documents = {_PATCH: patch(), "kustomization.yaml": kustomization}
    return {name: header + yaml.safe_dump(document, sort_keys=False) for name, document in documents.items()}


def main(argv: list[str]) -> int:
    return manifestfiles.main(argv, texts(), _MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
