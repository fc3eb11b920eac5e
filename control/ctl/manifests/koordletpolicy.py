"""ValidatingAdmissionPolicies: a koordlet writes objects of its own node only, and `pods/proxy` in Koordinator's
namespace reaches the components' pages only (docs/security.md).

    python -m control.ctl.manifests.koordletpolicy --out deploy/koordlet-policy           write it
    python -m control.ctl.manifests.koordletpolicy --out deploy/koordlet-policy --check   exit 1 if it differs

A role of a DaemonSet cannot name the node. The API server knows it from the token: a token of a pod has the name of the
pod's node as a claim (Kubernetes 1.30 and newer). Nor can a role name a port: koordlet's pods use the network of their
nodes, so without the second policy a user of the Role koordinator-view could send GET requests to every port of the
nodes' addresses. Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

from control.ctl.cluster.pods import KOORDLET_PORT, SCHEDULER_PORT
from control.ctl.manifests.koordlet import ACCOUNT
from control.manifestfiles import ManifestFolder, Object
from koordlet.api.names import DEVICE_DRIVER, KOORDINATOR_NAMESPACE

NAME = "koordlet-own-node"
PAGES_NAME = "koordinator-pages"
PAGE_PORTS = (KOORDLET_PORT, SCHEDULER_PORT)
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
_SLICES: tuple[str, list[str]] = ("resource.k8s.io", ["resourceslices"])
"""They name their node in `spec.nodeName`. A slice in another node's pool would hide that node's devices. Node, driver
and pool of a slice cannot be changed."""


def policy() -> list[Object]:
    """The policy and its binding."""
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": _WRITES, "resources": resources}
        for group, resources in (*_RESOURCES, _SLICES)
    ]
    claimed = f"has(request.userInfo.extra) && '{NODE_CLAIM}' in request.userInfo.extra"
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "koordlet", "expression": f"request.userInfo.username == '{USER}'"}],
        "variables": [
            {"name": "written", "expression": "oldObject != null ? oldObject : object"},
            {"name": "node", "expression": f"{claimed} ? request.userInfo.extra['{NODE_CLAIM}'][0] : ''"},
            {
                "name": "object",
                "expression": (
                    "request.resource.group != 'resource.k8s.io'"
                    " ? (object != null ? object.metadata.name : request.name)"
                    " : has(variables.written.spec.nodeName) ? variables.written.spec.nodeName : ''"
                ),
            },
        ],
        "validations": [
            {
                "expression": "variables.node != '' && variables.object == variables.node",
                "messageExpression": (
                    "'koordlet may only write objects of its own node: this is ' + variables.object"
                    " + ', its token is of node ' + (variables.node == '' ? '(none)' : variables.node)"
                ),
                "reason": "Forbidden",
            },
            {
                "expression": (
                    "request.resource.group != 'resource.k8s.io' || (variables.written.spec.driver"
                    f" == '{DEVICE_DRIVER}' && variables.written.spec.pool.name == variables.node)"
                ),
                "message": f"koordlet may only write slices of the driver {DEVICE_DRIVER} and the pool of its node",
                "reason": "Forbidden",
            },
        ],
    }
    return _with_binding(NAME, spec)


def pages() -> list[Object]:
    """The policy of `pods/proxy` and its binding. Users who may forward ports anyway are not restricted."""
    rules = [{"apiGroups": [""], "apiVersions": ["*"], "operations": ["CONNECT"], "resources": ["pods/proxy"]}]
    may_forward = (
        "authorizer.group('').resource('pods').subresource('portforward').namespace(request.namespace)"
        ".check('create').allowed()"
    )
    ports = [str(port) for port in PAGE_PORTS]
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": KOORDINATOR_NAMESPACE}},
            "resourceRules": rules,
        },
        "matchConditions": [{"name": "no-right-to-forward-ports", "expression": f"!{may_forward}"}],
        "validations": [
            {
                "expression": f"request.name.matches('^https:[^:]+:({'|'.join(ports)})$')",
                "message": f"pods/proxy in this namespace is for the pages at the HTTPS ports {' and '.join(ports)}",
                "reason": "Forbidden",
            }
        ],
    }
    return _with_binding(PAGES_NAME, spec)


def _with_binding(name: str, spec: Object) -> list[Object]:
    kind, meta = "ValidatingAdmissionPolicy", {"name": name}
    binding = {"policyName": name, "validationActions": ["Deny", "Audit"]}
    return [
        {"apiVersion": _GROUP, "kind": kind, "metadata": meta, "spec": spec},
        {"apiVersion": _GROUP, "kind": f"{kind}Binding", "metadata": meta, "spec": binding},
    ]


FILES = {"policy.yaml": policy, "pages.yaml": pages}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES)
texts = FOLDER.texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
