"""Writes and checks the generated folders of deploy/: objects such as roles and DaemonSets as YAML.

A generator lists its files and the functions that return their objects in a `ManifestFolder`, whose `main` is its
command line:

    python -m control.manager.manifests --out deploy/manager           write them
    python -m control.manager.manifests --out deploy/manager --check   exit 1 if they differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from koordlet.api.names import KOORDINATOR_NAMESPACE, LABEL_SKIP_HOOK_SERVER
from koordlet.version import VERSION

_RBAC = "rbac.authorization.k8s.io"
Object = dict[str, Any]
Files = Mapping[str, Callable[[], list[Object]]]
"""File name -> function that returns its objects, in an order in which they can be applied."""


CONTROL_PLANE_IMAGE = f"localhost/koordinator-py/control-plane:{VERSION}"
NODE_IMAGE = f"localhost/koordinator-py/node:{VERSION}"
"""`make images` builds them; `localhost` is no registry, so a node that lacks an image does not take a stranger's."""
VIEWER = "koordinator-view"
"""The account whose tokens koordctl sends to pods, and the roles of its users."""
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The securityContext of a container of the control plane: Pod Security level `restricted`."""
_LABEL = "app.kubernetes.io"
_TEMPLATED = ("Deployment", "DaemonSet")


def rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    """One PolicyRule."""
    result: Object = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**result, "resourceNames": names} if names else result


@dataclass(frozen=True)
class Purpose:
    """Rules of a role that serve one purpose; docs/security.md lists them."""

    text: str
    rules: tuple[Object, ...]


def purpose(text: str, *rules: Object) -> Purpose:
    """Rules with what they are for."""
    return Purpose(text, rules)


def rules_of(purposes: Iterable[Purpose]) -> list[Object]:
    """The rules of all purposes, in order."""
    return [rule for each in purposes for rule in each.rules]


REVIEW_RULES: tuple[Object, ...] = (
    rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
    rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
)
"""For components that authorize the callers of their pages (`koordlet.kube.delegated`)."""


def rbac(
    account: str, rules: list[Object], own_rules: list[Object] | None = None, *, namespace: str = KOORDINATOR_NAMESPACE
) -> list[Object]:
    """A ServiceAccount with a ClusterRole of its name, and a Role in its namespace for `own_rules`."""
    own = {"name": account, "namespace": namespace}
    objects: list[Object] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own}]
    for kind, meta, granted in (("ClusterRole", {"name": account}, rules), ("Role", own, own_rules)):
        if granted is not None:
            objects += [
                {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "rules": granted},
                {
                    "apiVersion": f"{_RBAC}/v1",
                    "kind": f"{kind}Binding",
                    "metadata": meta,
                    "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": account},
                    "subjects": [{"kind": "ServiceAccount", **own}],
                },
            ]
    return objects


def extra_role(account: str, suffix: str, rules: list[Object]) -> list[Object]:
    """A ClusterRole `ACCOUNT-SUFFIX` with more rights for an account, and its binding."""
    _, role, binding = rbac(account, rules)
    name = f"{account}-{suffix}"
    reference = {**binding["roleRef"], "name": name}
    return [{**role, "metadata": {"name": name}}, {**binding, "metadata": {"name": name}, "roleRef": reference}]


@dataclass(frozen=True)
class OptionalRights:
    """Rights that a component needs only with a feature: a file `NAME.yaml` in deploy/COMPONENT-rights, and a value of
    the chart, `COMPONENT.rights.VALUE`."""

    name: str
    value: str
    purposes: tuple[Purpose, ...]

    @property
    def rules(self) -> list[Object]:
        return rules_of(self.purposes)

    def role(self, account: str) -> list[Object]:
        """The ClusterRole and its binding."""
        return extra_role(account, self.name, self.rules)


@dataclass(frozen=True)
class ManifestFolder:
    """A folder of deploy/ that `module` writes, and the folder of optional rights beside it."""

    module: str
    account: str
    files: Files
    rights: Collection[OptionalRights] = ()
    once: Collection[str] = ()
    """See `texts`."""

    def texts(self) -> dict[str, str]:
        """File name -> content."""
        return texts(self.files, self.module, self.account, once=self.once)

    def rights_texts(self) -> dict[str, str]:
        """The same for deploy/COMPONENT-rights."""
        files = {f"{each.name}.yaml": partial(each.role, self.account) for each in self.rights}
        return texts(files, self.module, self.account)

    def main(self) -> int:
        """The command line of the generator."""
        return main(sys.argv[1:], self.texts(), self.module, self.rights_texts() if self.rights else None)


@dataclass(frozen=True)
class HostPath:
    """A path of the node mounted in a container."""

    name: str
    path: str
    inside: str
    kind: str = "Directory"
    propagation: str = ""
    """Mount propagation; "": none."""
    read_only: bool = False

    @property
    def mount(self) -> Object:
        """The entry in `volumeMounts`."""
        result: Object = {"name": self.name, "mountPath": self.inside}
        result |= {"mountPropagation": self.propagation} if self.propagation else {}
        return {**result, "readOnly": True} if self.read_only else result


def daemonset(
    container: Object,
    paths: Collection[HostPath],
    *,
    spec: Object,
    pod: Object,
    annotations: Mapping[str, str],
) -> list[Object]:
    """A DaemonSet with the container's name on every Linux node, in its network and pid namespaces; `spec`, `pod` and
    the pods' `annotations` are specific. It is exempt from hooks: the hook server may be the one that would have to
    respond."""
    labels = {"koord-app": container["name"]}
    whole = {
        "selector": {"matchLabels": labels},
        **spec,
        "template": {
            "metadata": {"labels": {**labels, LABEL_SKIP_HOOK_SERVER: "true"}, "annotations": dict(annotations)},
            "spec": {
                **pod,
                "priorityClassName": "system-node-critical",
                "hostNetwork": True,
                "hostPID": True,
                "dnsPolicy": "ClusterFirstWithHostNet",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{**container, "volumeMounts": [host_path.mount for host_path in paths]}],
                "volumes": [
                    {"name": host_path.name, "hostPath": {"path": host_path.path, "type": host_path.kind}}
                    for host_path in paths
                ],
            },
        },
    }
    meta = {"name": container["name"], "namespace": KOORDINATOR_NAMESPACE, "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": whole}]


def config_map(name: str, key: str, document: Object) -> list[Object]:
    """A ConfigMap with a configuration file."""
    meta = {"name": name, "namespace": KOORDINATOR_NAMESPACE}
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {key: text}}]


def probes(address: Object, ready: str) -> Object:
    """A container's probes. `address`: of an HTTP request, without its path; `ready`: the readiness probe's path.

    It has five minutes to start. Afterwards three answers that take longer than five seconds restart it. A node that
    is short of CPU must not stop the component that makes room on it.
    """
    alive = {"httpGet": {"path": "/healthz", **address}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {"httpGet": {"path": ready, **address}, "timeoutSeconds": 5},
        "livenessProbe": alive,
    }


def replicated(account: str, container: Object, *, config: str, secure_port: int) -> list[Object]:
    """A Deployment of two replicas, one of which is the leader: a component of the control plane whose pages are all on
    the secure port, and whose ConfigMap `config` is mounted at /config. `container`: name, args and resources; its
    binary has the account's name."""
    labels = {"koord-app": account}
    probe = {"port": secure_port, "scheme": "HTTPS"}
    whole: Object = {
        "name": container["name"],
        "image": CONTROL_PLANE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [account],
        "args": container["args"],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "secure", "containerPort": secure_port, "protocol": "TCP"}],
        **probes(probe, "/healthz"),
        "resources": container["resources"],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "config", "mountPath": "/config", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": account,
        "priorityClassName": "system-cluster-critical",
        **placement(labels),
        "containers": [whole],
        "volumes": [{"name": "config", "configMap": {"name": config}}],
    }
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    meta = {"name": account, "namespace": KOORDINATOR_NAMESPACE, "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}]


def placement(labels: Mapping[str, str]) -> Object:
    """Pod fields that keep replicas apart: on other nodes and in other zones if there are any."""
    term = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    zones = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }
    return {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "topologySpreadConstraints": [zones],
    }


def protection(app: str, ports: Collection[int]) -> list[Object]:
    """A PodDisruptionBudget that lets one replica go at a time, and a NetworkPolicy that opens only `ports`, to all
    callers: the API server and a Prometheus may have any address."""
    meta = {"name": app, "namespace": KOORDINATOR_NAMESPACE, "labels": {"koord-app": app}}
    selector = {"matchLabels": {"koord-app": app}}
    budget = {"maxUnavailable": 1, "selector": selector}
    ingress = [{"ports": [{"port": port, "protocol": "TCP"} for port in ports]}]
    policy = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
    return [
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": policy},
    ]


def labelled(obj: Object, app: str) -> Object:
    """The object with Kubernetes' recommended labels, also on the pods of a workload; selectors are not changed."""
    labels = {f"{_LABEL}/name": app, f"{_LABEL}/part-of": "koordinator", f"{_LABEL}/version": VERSION}
    meta = {**obj["metadata"], "labels": {**obj["metadata"].get("labels", {}), **labels}}
    result = {**obj, "metadata": meta}
    if obj["kind"] in _TEMPLATED:
        template = obj["spec"]["template"]
        pod = {**template["metadata"], "labels": {**template["metadata"]["labels"], **labels}}
        result["spec"] = {**obj["spec"], "template": {**template, "metadata": pod}}
    return result


class _Dumper(yaml.SafeDumper):
    """No anchors: repeated values are written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def written_by(module: str) -> str:
    """The first line of a generated file."""
    return f"# Written by `python -m {module}`; edit that instead.\n"


def texts(files: Files, module: str, app: str, *, once: Collection[str] = ()) -> dict[str, str]:
    """File name -> content, with a kustomization at the end; each file names `module` as the place to edit. Files in
    `once` are not part of the kustomization: their objects belong to the user afterwards, and applying them again would
    undo changes."""
    header = written_by(module)
    result = {
        name: header + yaml.dump_all([labelled(obj, app) for obj in make()], Dumper=_Dumper, sort_keys=False, width=120)
        for name, make in files.items()
    }  # fmt: skip
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [name for name in files if name not in once],
    }
    return {**result, "kustomization.yaml": header + yaml.dump(kustomization, sort_keys=False)}


def overlay(module: str, base: str, patch: Object) -> dict[str, str]:
    """File name -> content of a kustomize folder, written by `module`, that patches the folder `base`."""
    name = f"{patch['kind'].lower()}.yaml"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "patches": [{"path": name}],
    }
    documents = {name: patch, "kustomization.yaml": kustomization}
    return {name: written_by(module) + yaml.safe_dump(each, sort_keys=False) for name, each in documents.items()}


def main(argv: list[str], contents: Mapping[str, str], module: str, rights: Mapping[str, str] | None = None) -> int:
    """See the module; `contents`: the result of `texts`; `rights`: that of `rights_texts`, written with `--rights`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    if rights is not None:
        parser.add_argument("--rights", action="store_true")
    args = parser.parse_args(argv)
    if rights is not None and args.rights:
        contents = rights
    for name, text in contents.items():
        path: Path = args.out / name
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} differs from the output of {module}\n")
            return 1
    return 0
