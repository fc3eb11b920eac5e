"""The Kubernetes objects of the koord-scheduler deployment (spec 05 §2.2). Data; the only I/O is writing deploy/.

python -m control.scheduler.process.manifests --out deploy/scheduler           write them
python -m control.scheduler.process.manifests --out deploy/scheduler --check   exit 1 if they differ
python -m control.scheduler.process.manifests --rights --out deploy/scheduler-rights   the same for optional rights
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.manifestfiles import ManifestFolder, Object, OptionalRights, purpose, rule, rules_of
from control.scheduler.config.shipped import SCHEDULER, configuration
from control.scheduler.state.objects import TEMPLATES_CONFIG

ACCOUNT = "koord-scheduler"
CONFIG = "koord-scheduler-config"
SECURE_PORT = 10259

_MODULE = "control.scheduler.process.manifests"
_READ = ["list", "watch"]

PURPOSES = (
    purpose(
        "inputs of decisions",
        rule("", ["nodes", "namespaces", "services", "replicationcontrollers"], _READ),
        rule("apps", ["replicasets", "statefulsets"], _READ),
        rule("policy", ["poddisruptionbudgets"], _READ),
        rule("storage.k8s.io", ["storageclasses", "csinodes", "csidrivers", "csistoragecapacities"], _READ),
        rule("slo.koordinator.sh", ["nodemetrics"], _READ),
        rule("scheduling.koordinator.sh", ["clusternetworktopologies", "devices"], _READ),
        rule("topology.node.k8s.io", ["noderesourcetopologies"], _READ),
        rule("", ["configmaps"], _READ, [TEMPLATES_CONFIG]),
    ),
    purpose(
        "results of decisions: bindings, annotations, conditions, victims of preemption, volumes, the state of gangs",
        rule("", ["pods"], [*_READ, "patch", "delete"]),
        rule("", ["pods/binding"], ["create"]),
        rule("", ["pods/status"], ["patch"]),
        rule("", ["persistentvolumes", "persistentvolumeclaims"], [*_READ, "patch"]),
        rule("scheduling.sigs.k8s.io", ["podgroups"], [*_READ, "patch"]),
    ),
    purpose(
        "devices of resource claims",
        rule("resource.k8s.io", ["resourceslices", "deviceclasses"], _READ),
        rule("resource.k8s.io", ["resourceclaims"], [*_READ, "get", "patch"]),
        rule("resource.k8s.io", ["resourceclaims/status"], ["patch"]),
    ),
    purpose(
        "the status of the network topology (--enable-network-topology-manager)",
        rule("scheduling.koordinator.sh", ["clusternetworktopologies/status"], ["patch"]),
    ),
    purpose(
        "the status of quotas, built-in quotas, pods of overused quotas",
        rule("scheduling.sigs.k8s.io", ["elasticquotas"], [*_READ, "create", "patch"]),
        rule("", ["pods/eviction"], ["create"]),
    ),
    purpose(
        "reservations: their bindings, CPUs, conditions, ends, and garbage collection",
        rule("scheduling.koordinator.sh", ["reservations"], [*_READ, "get", "patch", "delete"]),
        rule("scheduling.koordinator.sh", ["reservations/status"], ["patch"]),
    ),
    purpose(
        "authentication and authorization of callers of the secure port",
        *manifestfiles.REVIEW_RULES,
    ),
    purpose(
        "reports to users",
        rule("", ["events"], ["create", "patch"]),
        rule("scheduling.koordinator.sh", ["scheduleexplanations"], [*_READ, "delete"]),
        rule("scheduling.koordinator.sh", ["scheduleexplanations/status"], ["patch"]),
    ),
)
RULES: list[Object] = rules_of(PURPOSES)
"""The ClusterRole. A test compares it with the requests of a scheduler that exercises every feature."""

RIGHTS = (
    OptionalRights(
        "device-locks",
        "deviceLocks",
        (
            purpose(
                "locks of nodes with devices of Cambricon or MetaX (gate DevicePluginAdaption)",
                rule("", ["nodes"], ["get", "patch"]),
            ),
        ),
    ),
)

NAMESPACE_PURPOSES = (
    purpose(
        "leader election",
        rule("coordination.k8s.io", ["leases"], ["create"]),
        rule("coordination.k8s.io", ["leases"], ["get", "patch"], [SCHEDULER]),
    ),
)
NAMESPACE_RULES: list[Object] = rules_of(NAMESPACE_PURPOSES)
"""The Role in the scheduler's own namespace."""


def rbac() -> list[Object]:
    """ServiceAccount, roles and bindings."""
    return manifestfiles.rbac(ACCOUNT, RULES, NAMESPACE_RULES)


def config() -> list[Object]:
    """The ConfigMap with the configuration file."""
    return manifestfiles.config_map(CONFIG, CONFIG, configuration())


def deployment() -> list[Object]:
    """Two replicas, one of which is the leader."""
    container: Object = {
        "name": "scheduler",
        "args": [
            "--port=0",  # all pages are on the secure port, for authorized callers
            f"--secure-port={SECURE_PORT}",
            "--v=2",
            "--feature-gates=",
            f"--config=/config/{CONFIG}",
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
    }
    return manifestfiles.replicated(ACCOUNT, container, config=CONFIG, secure_port=SECURE_PORT)


def protection() -> list[Object]:
    """Disruption budget and network policy."""
    return manifestfiles.protection(ACCOUNT, (SECURE_PORT,))


FILES = {
    "rbac.yaml": rbac,
    "koord-scheduler-config.yaml": config,
    "deployment.yaml": deployment,
    "protection.yaml": protection,
}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES, RIGHTS)
texts, rights_texts = FOLDER.texts, FOLDER.rights_texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
