"""The additional right that koordlet needs at kubelets without fine-grained authorization (before Kubernetes 1.33).

    python -m control.ctl.manifests.olderkubelets --out deploy/koordlet-older-kubelets           write it
    python -m control.ctl.manifests.olderkubelets --out deploy/koordlet-older-kubelets --check   exit 1 if it differs

Such a kubelet checks nodes/proxy for /pods and /configz. `get` on nodes/proxy also allows commands in every container
of every node, so deploy/koordlet does not grant it. Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.ctl.manifests.koordlet import ACCOUNT
from control.manifestfiles import ManifestFolder, Object, rule

SUFFIX = "older-kubelets"

_MODULE = "control.ctl.manifests.olderkubelets"


def rbac() -> list[Object]:
    """A ClusterRole and its binding to koordlet's account of deploy/koordlet."""
    return manifestfiles.extra_role(ACCOUNT, SUFFIX, [rule("", ["nodes/proxy"], ["get"])])


FILES = {"rbac.yaml": rbac}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES)
texts = FOLDER.texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
