"""Generated folders below deploy/: rules of roles, DaemonSets; objects written as YAML or held against what is written.

A generator names its files and what makes their objects (`FILES`); `main` is its command line:

    python -m control.manager.manifests --out deploy/manager           write them
    python -m control.manager.manifests --out deploy/manager --check   exit 1 if they differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from koordlet.api.names import KOORDINATOR_NAMESPACE, LABEL_SKIP_HOOK_SERVER

_RBAC = "rbac.authorization.k8s.io"
Object = dict[str, Any]
Files = Mapping[str, Callable[[], list[Object]]]
"""File name -> what makes its objects, in an order that can be applied."""


def rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    """One PolicyRule."""
    made: Object = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**made, "resourceNames": names} if names else made


def rbac(account: str, rules: list[Object], own_rules: list[Object] | None = None) -> list[Object]:
    """A ServiceAccount in Koordinator's namespace with a ClusterRole of its name, and a Role there for `own_rules`."""
    own = {"name": account, "namespace": KOORDINATOR_NAMESPACE}
    made: list[Object] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own}]
    for kind, meta, granted in (("ClusterRole", {"name": account}, rules), ("Role", own, own_rules)):
        if granted is not None:
            made += [
                {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "rules": granted},
                {
                    "apiVersion": f"{_RBAC}/v1",
                    "kind": f"{kind}Binding",
                    "metadata": meta,
                    "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": account},
                    "subjects": [{"kind": "ServiceAccount", **own}],
                },
            ]
    return made


@dataclass(frozen=True)
class HostPath:
    """A path of the node in a container."""

    name: str
    path: str
    inside: str
    kind: str = "Directory"
    propagation: str = ""
    """Of mounts below it; "": none."""

    @property
    def mount(self) -> Object:
        """In `volumeMounts`."""
        made: Object = {"name": self.name, "mountPath": self.inside}
        return {**made, "mountPropagation": self.propagation} if self.propagation else made


def daemonset(container: Object, paths: Collection[HostPath], *, spec: Object, pod: Object) -> list[Object]:
    """One of the container's name on every Linux node, in its network and pid namespaces; `spec` and `pod` say what is
    the set's own. No hook server is asked before it starts: it may be the one that would have to answer."""
    labels = {"koord-app": container["name"]}
    whole = {
        "selector": {"matchLabels": labels},
        **spec,
        "template": {
            "metadata": {"labels": {**labels, LABEL_SKIP_HOOK_SERVER: "true"}},
            "spec": {
                **pod,
                "priorityClassName": "system-node-critical",
                "hostNetwork": True,
                "hostPID": True,
                "dnsPolicy": "ClusterFirstWithHostNet",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{**container, "volumeMounts": [one.mount for one in paths]}],
                "volumes": [{"name": one.name, "hostPath": {"path": one.path, "type": one.kind}} for one in paths],
            },
        },
    }
    meta = {"name": container["name"], "namespace": KOORDINATOR_NAMESPACE, "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": whole}]


class _Dumper(yaml.SafeDumper):
    """No anchors: what stands in two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def texts(files: Files, module: str, *, once: Collection[str] = ()) -> dict[str, str]:
    """File name -> content, a kustomization last; `module` is named in each as the place to edit. Files `once` are no
    part of the kustomization: what they make is its owner's to change, and applying again would undo that."""
    header = f"# Written by `python -m {module}`; edit that instead.\n"
    result = {
        name: header + yaml.dump_all(make(), Dumper=_Dumper, sort_keys=False, width=120)
        for name, make in files.items()
    }  # fmt: skip
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [name for name in files if name not in once],
    }
    return {**result, "kustomization.yaml": header + yaml.dump(kustomization, sort_keys=False)}


def main(argv: list[str], made: Mapping[str, str], module: str) -> int:
    """See the module text; `made` is what `texts` says."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    for name, text in made.items():
        path: Path = args.out / name
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} is not what {module} says\n")
            return 1
    return 0
