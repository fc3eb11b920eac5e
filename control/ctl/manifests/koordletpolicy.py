"""The ValidatingAdmissionPolicy that restricts a koordlet's writes to the objects of its own node (docs/security.md).

    python -m control.ctl.manifests.koordletpolicy --out deploy/koordlet-policy           write it
    python -m control.ctl.manifests.koordletpolicy --out deploy/koordlet-policy --check   exit 1 if it differs

A role of a DaemonSet cannot name the node. The API server knows it from the token: a token of a pod has the name of the
pod's node as a claim (Kubernetes 1.30 and newer). Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.ctl.manifests.koordlet import ACCOUNT
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE

NAME = "koordlet-own-node"
USER = f"system:serviceaccount:{KOORDINATOR_NAMESPACE}:{ACCOUNT}"
NODE_CLAIM = "authentication.kubernetes.io/node-name"

_GROUP = "admissionregistration.k8s.io/v1"
_MODULE = "control.ctl.manifests.koordletpolicy"
_WRITES = ["CREATE", "UPDATE", "DELETE"]
_RESOURCES: tuple[tuple[str, list[str]], ...] = (
    ("", ["nodes", "nodes/status"]),
    ("slo.koordinator.sh", ["nodemetrics", "nodemetrics/status", "nodeslos", "nodeslos/status"]),
    ("topology.node.k8s.io", ["noderesourcetopologies"]),
    ("scheduling.koordinator.sh", ["devices", "devices/status"]),
)
"""The resources whose objects have the name of their node."""


def policy() -> list[Object]:
    """The policy and its binding."""
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": _WRITES, "resources": resources}
        for group, resources in _RESOURCES
    ]
    claimed = f"has(request.userInfo.extra) && '{NODE_CLAIM}' in request.userInfo.extra"
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "koordlet", "expression": f"request.userInfo.username == '{USER}'"}],
        "variables": [
            {"name": "node", "expression": f"{claimed} ? request.userInfo.extra['{NODE_CLAIM}'][0] : ''"},
            {"name": "object", "expression": "object != null ? object.metadata.name : request.name"},
        ],
        "validations": [
            {
                "expression": "variables.node != '' && variables.object == variables.node",
                "messageExpression": (
                    "'koordlet may only write objects of its own node: this is ' + variables.object"
                    " + ', its token is of node ' + (variables.node == '' ? '(none)' : variables.node)"
                ),
                "reason": "Forbidden",
            }
        ],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny", "Audit"]}
    return [
        {"apiVersion": _GROUP, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": spec},
        {
            "apiVersion": _GROUP,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": binding,
        },
    ]


FILES = {"policy.yaml": policy}


def texts() -> dict[str, str]:
    """File name -> content."""
    return manifestfiles.texts(FILES, _MODULE, ACCOUNT)


def main(argv: list[str]) -> int:
    return manifestfiles.main(argv, texts(), _MODULE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
