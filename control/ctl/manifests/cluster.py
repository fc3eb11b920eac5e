"""Objects that an empty cluster needs for koordlet and the stand-in kubelet. Data only.

Custom resource definitions come from `koordlet.api.encoding.crdgen`, the manager's objects from
`control.manager.manifests`, koordlet's from `control.ctl.manifests.koordlet`: the sources of deploy/, as an installed
package has no deploy folder. Each agent has its own ServiceAccount with the rights it uses and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import yaml

from control.ctl.manifests import koordlet as agent
from control.descheduler.config import model as descheduling
from control.descheduler.process import manifests as descheduler
from control.descheduler.process import rights
from control.manager import manifests as manager
from control.manifestfiles import Object, rbac, rule
from control.scheduler.config import shipped
from control.scheduler.process import manifests as scheduler
from koordlet.api.crs.nodemetric import CollectPolicy, NodeAggregatePolicy
from koordlet.api.encoding import crdgen
from koordlet.api.encoding.wire import Duration, to_builtins

KUBELET, KOORDLET, MANAGER, SCHEDULER = "koord-kubelet", agent.ACCOUNT, manager.ACCOUNT, scheduler.ACCOUNT
SECOND_KUBELET, DESCHEDULER = "koord-second-kubelet", descheduler.ACCOUNT
"""ServiceAccounts in the namespace koordinator-system; also the names of roles and bindings."""
BARE_NAMESPACE = "kube-system"
"""The kubelet's account on a bare node."""


def _kubelet_rules(node: str) -> list[Object]:
    return [
        rule("", ["nodes"], ["get", "list", "watch", "create"]),
        rule("", ["nodes", "nodes/status"], ["patch"], [node]),
        rule("", ["pods"], ["get", "list", "watch", "delete"]),
        rule("", ["pods/status"], ["patch"]),
        rule("", ["configmaps", "secrets"], ["get"]),
        rule("", ["serviceaccounts/token"], ["create"]),
        rule("", ["events"], ["create", "patch"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
        rule("coordination.k8s.io", ["leases"], ["create"]),
        rule("coordination.k8s.io", ["leases"], ["get", "patch"], [node]),
        rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
        rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    ]


def crds() -> list[Object]:
    """The definitions of all custom kinds."""
    return list(crdgen.documents().values())


def base(node: str) -> Iterator[Object]:
    """Namespace, priority classes, accounts and rights, in an order in which they can be created."""
    yield from manager.namespace()
    yield from manager.priority_classes()
    yield from manager.rbac()
    yield from scheduler.rbac()
    yield from agent.rbac(node)
    yield from rbac(KUBELET, _kubelet_rules(node))


def bare(node: str) -> list[Object]:
    """The stand-in kubelet's account and rights, outside of the namespace that an installation creates and removes."""
    return rbac(KUBELET, _kubelet_rules(node), namespace=BARE_NAMESPACE)


def second(node: str) -> Iterator[Object]:
    """Accounts and rights of a second node, and of the descheduler that moves pods to it."""
    yield from rbac(SECOND_KUBELET, _kubelet_rules(node))
    yield from descheduler.rbac()
    for feature in (rights.EVICTION, rights.MIGRATION):
        yield from feature.role(descheduler.ACCOUNT)


def configuration(*, report_seconds: int, aggregate_seconds: int) -> Object:
    """slo-controller-config of a fresh node: co-location is enabled, all strategies are disabled."""
    strategy = {
        "enable": True,
        "metricReportIntervalSeconds": report_seconds,
        "metricAggregateDurationSeconds": aggregate_seconds,
    }
    return manager.config({"colocation-config": json.dumps(strategy)})[0]


def scheduler_configuration() -> str:
    """The scheduler's configuration file of deploy/scheduler, for a single replica without leader election."""
    document = shipped.configuration()
    document["leaderElection"]["leaderElect"] = False  # it is the only replica: a new one need not wait for a lease
    return yaml.safe_dump(document, sort_keys=False)


def descheduler_configuration(address: str) -> str:
    """The descheduler's configuration file for two nodes: the plugin InterferenceAware moves culprits by
    PodMigrationJobs. It does not wait as long as by default, also moves the only pod of a workload, and accepts that
    other work on the machine is among the culprits.
    """
    moves = {"persistSeconds": 20, "minCulpritShare": 0.2, "minConfidence": 0.3, "moveVictims": False}
    document = {
        "apiVersion": descheduling.API_VERSION,
        "kind": descheduling.KIND,
        "leaderElection": {"leaderElect": False},  # it is the only replica
        "healthzBindAddress": address,
        "metricsBindAddress": address,
        "deschedulingInterval": "2s",
        "profiles": [
            {
                "name": DESCHEDULER,
                "plugins": {"balance": {"enabled": [{"name": "InterferenceAware"}]}},
                "pluginConfig": [
                    {"name": "InterferenceAware", "args": moves},
                    {"name": "MigrationController", "args": {"skipEvictionGates": ["ExpectedReplicas"]}},
                ],
            }
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)


def webhooks() -> list[Object]:
    """The two webhook configurations; the manager completes them."""
    return manager.webhooks()


def node_metric(node: str, *, report_seconds: int, aggregate_seconds: int) -> Object:
    """The NodeMetric whose status koordlet writes, for a cluster without a manager."""
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
    """The node's QoS policy for a cluster without a manager: nothing is enabled."""
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": node},
        "spec": {},
    }
