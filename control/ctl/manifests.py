"""The objects a bare cluster needs before koordlet and the stand-in kubelet can work in it. Data only.

Custom resource definitions come from `koordlet.api.crdgen` and what the manager needs from `control.manager.manifests`,
the sources of deploy/crds and deploy/manager: an installed package has no deploy folder. Rights are what the agents
ask for and no more; each has a ServiceAccount of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from control.manager import manifests as manager
from koordlet.api import crdgen
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.api.nodemetric import CollectPolicy, NodeAggregatePolicy
from koordlet.api.wire import Duration, to_builtins

Object = dict[str, Any]

KUBELET, KOORDLET, MANAGER = "koord-kubelet", "koordlet", manager.ACCOUNT
"""ServiceAccounts in the namespace koordinator-system; also the names of roles and bindings."""

_RBAC = "rbac.authorization.k8s.io"


def _rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    rule: Object = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**rule, "resourceNames": names} if names else rule


def _kubelet_rules(node: str) -> list[Object]:
    return [
        _rule("", ["nodes"], ["get", "list", "watch", "create"]),
        _rule("", ["nodes", "nodes/status"], ["patch"], [node]),
        _rule("", ["pods"], ["get", "list", "watch", "delete"]),
        _rule("", ["pods/status"], ["patch"]),
        _rule("", ["configmaps", "secrets"], ["get"]),
        _rule("", ["events"], ["create", "patch"]),
        _rule("events.k8s.io", ["events"], ["create", "patch"]),
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "patch"], [node]),
        _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
        _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    ]


def _koordlet_rules(node: str) -> list[Object]:
    return [
        _rule("", ["nodes"], ["get", "list", "watch"]),
        _rule("", ["nodes/pods", "nodes/configz", "nodes/proxy"], ["get"], [node]),
        _rule("", ["nodes/status"], ["patch"], [node]),
        _rule("slo.koordinator.sh", ["nodeslos", "nodemetrics"], ["get", "list", "watch"]),
        _rule("slo.koordinator.sh", ["nodemetrics/status"], ["patch"], [node]),
        _rule("topology.node.k8s.io", ["noderesourcetopologies"], ["get", "list", "watch", "create"]),
        _rule("topology.node.k8s.io", ["noderesourcetopologies"], ["patch"], [node]),
        _rule("", ["events"], ["create", "patch"]),
    ]


def crds() -> list[Object]:
    """The definitions of all thirteen kinds."""
    return list(crdgen.documents().values())


def base(node: str) -> Iterator[Object]:
    """Namespace, priority classes, accounts and rights; in an order that can be created."""
    yield from manager.namespace()
    yield from manager.priority_classes()
    yield from manager.rbac()
    for name, rules in ((KUBELET, _kubelet_rules(node)), (KOORDLET, _koordlet_rules(node))):
        yield {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": KOORDINATOR_NAMESPACE},
        }
        yield {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        }
        yield {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": KOORDINATOR_NAMESPACE}],
        }


def configuration(*, report_seconds: int, aggregate_seconds: int) -> Object:
    """slo-controller-config of a fresh node: co-location on, no strategy switched on until somebody says so."""
    strategy = {
        "enable": True,
        "metricReportIntervalSeconds": report_seconds,
        "metricAggregateDurationSeconds": aggregate_seconds,
    }
    return manager.config({"colocation-config": json.dumps(strategy)})[0]


def webhooks() -> list[Object]:
    """The two webhook configurations; the manager fills them in."""
    return manager.webhooks()


def node_metric(node: str, *, report_seconds: int, aggregate_seconds: int) -> Object:
    """The object that koordlet fills in, where no manager makes it."""
    policy = CollectPolicy(
        aggregate_duration_seconds=aggregate_seconds,
        report_interval_seconds=report_seconds,
        node_aggregate_policy=NodeAggregatePolicy(durations=[Duration("5m"), Duration("10m"), Duration("30m")]),
    )
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": node},
        "spec": {"metricCollectPolicy": to_builtins(policy)},
    }


def node_slo(node: str) -> Object:
    """The node's QoS policy where no manager makes it: nothing is switched on."""
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": node},
        "spec": {},
    }
