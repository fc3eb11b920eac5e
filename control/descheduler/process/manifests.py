"""The Kubernetes objects of the koord-descheduler deployment (spec 07 §1.4). Data; the only I/O is writing deploy/.

python -m control.descheduler.process.manifests --out deploy/descheduler           write them
python -m control.descheduler.process.manifests --out deploy/descheduler --check   exit 1 if they differ
python -m control.descheduler.process.manifests --rights --out deploy/descheduler-rights   the same for its features
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.component.rights import QUERIES
from control.descheduler.config.model import COMPONENT
from control.descheduler.config.shipped import configuration
from control.descheduler.process.rights import FEATURES
from control.manifestfiles import ManifestFolder, Object, purpose, rule, rules_of

ACCOUNT = COMPONENT
CONFIG = "descheduler-config"
CONFIG_KEY = "koord-descheduler-config"
SECURE_PORT = 10258

_MODULE = "control.descheduler.process.manifests"
_READ = ["list", "watch"]

PURPOSES = (
    purpose(
        "inputs of decisions",
        rule("", ["nodes", "pods"], _READ),
        rule("slo.koordinator.sh", ["nodemetrics"], _READ),
    ),
    purpose(
        "inputs of DefaultEvictor, if its arguments name them",
        rule("policy", ["poddisruptionbudgets"], _READ),
        rule("scheduling.k8s.io", ["priorityclasses"], _READ),
    ),
    purpose(
        "authentication and authorization of callers of the secure port",
        *manifestfiles.REVIEW_RULES,
    ),
    purpose(
        "reports to users",
        rule("", ["events"], ["create", "patch"]),
    ),
    QUERIES,
)
RULES: list[Object] = rules_of(PURPOSES)
"""The ClusterRole; `rights.FEATURES` has those of features. A test compares all with the requests of a descheduler that
exercises every feature."""

NAMESPACE_PURPOSES = (
    purpose(
        "leader election",
        rule("coordination.k8s.io", ["leases"], ["create"]),
        rule("coordination.k8s.io", ["leases"], ["get", "patch"], [COMPONENT]),
    ),
)
NAMESPACE_RULES: list[Object] = rules_of(NAMESPACE_PURPOSES)
"""The Role in the descheduler's own namespace."""


def rbac() -> list[Object]:
    """ServiceAccount, roles and bindings."""
    return manifestfiles.rbac(ACCOUNT, RULES, NAMESPACE_RULES)


def config() -> list[Object]:
    """The ConfigMap with the configuration file."""
    return manifestfiles.config_map(CONFIG, CONFIG_KEY, configuration())


def deployment() -> list[Object]:
    """Two replicas, one of which is the leader."""
    container: Object = {
        "name": "descheduler",
        "args": [
            f"--secure-port={SECURE_PORT}",
            "--v=2",
            "--feature-gates=",
            f"--config=/config/{CONFIG_KEY}",
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    }
    return manifestfiles.replicated(ACCOUNT, container, config=CONFIG, secure_port=SECURE_PORT)


def protection() -> list[Object]:
    """Disruption budget and network policy."""
    return manifestfiles.protection(ACCOUNT, (SECURE_PORT,))


FILES = {
    "rbac.yaml": rbac,
    "descheduler-config.yaml": config,
    "deployment.yaml": deployment,
    "protection.yaml": protection,
}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES, FEATURES)
texts, rights_texts = FOLDER.texts, FOLDER.rights_texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
