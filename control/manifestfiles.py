"""Writes and checks the generated folders of deploy/: objects such as roles and DaemonSets as YAML.

A generator lists its files and the functions that return their objects (`FILES`); `main` is its command line:

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
"""File name -> function that returns its objects, in an order in which they can be applied."""


def rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    """One PolicyRule."""
    result: Object = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**result, "resourceNames": names} if names else result


def rbac(account: str, rules: list[Object], own_rules: list[Object] | None = None) -> list[Object]:
    """A ServiceAccount in Koordinator's namespace with a ClusterRole of its name, and a Role there for `own_rules`."""
    own = {"name": account, "namespace": KOORDINATOR_NAMESPACE}
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


@dataclass(frozen=True)
class HostPath:
    """A path of the node mounted in a container."""

    name: str
    path: str
    inside: str
    kind: str = "Directory"
    propagation: str = ""
    """Mount propagation; "": none."""

    @property
    def mount(self) -> Object:
        """The entry in `volumeMounts`."""
        result: Object = {"name": self.name, "mountPath": self.inside}
        return {**result, "mountPropagation": self.propagation} if self.propagation else result


def daemonset(container: Object, paths: Collection[HostPath], *, spec: Object, pod: Object) -> list[Object]:
    """A DaemonSet with the container's name on every Linux node, in its network and pid namespaces; `spec` and `pod`
    are the specific fields. It is exempt from hooks: the hook server may be the one that would have to respond."""
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
    """No anchors: repeated values are written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def texts(files: Files, module: str, *, once: Collection[str] = ()) -> dict[str, str]:
    """File name -> content, with a kustomization at the end; each file names `module` as the place to edit. Files in
    `once` are not part of the kustomization: their objects belong to the user afterwards, and applying them again would
    undo changes."""
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


def main(argv: list[str], contents: Mapping[str, str], module: str) -> int:
    """See the module; `contents`: the result of `texts`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    for name, text in contents.items():
        path: Path = args.out / name
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} differs from the output of {module}\n")
            return 1
    return 0
