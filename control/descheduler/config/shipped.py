"""The configuration that koord-descheduler is deployed with (spec 07 §2.4).

LowNodeLoad is configured and not enabled: no pod moves until the user adds it to `balance.enabled`.
"""

from __future__ import annotations

from typing import Any

from control.descheduler.config.model import API_VERSION, COMPONENT, KIND
from koordlet.api.names import KOORDINATOR_NAMESPACE

OFF = "127.0.0.1:0"
"""A bind address that serves nothing: all pages are on the secure port, for authorized callers."""


def _args(plugin: str, **values: Any) -> dict[str, Any]:
    return {"name": plugin, "args": {"apiVersion": API_VERSION, "kind": f"{plugin}Args", **values}}


def configuration() -> dict[str, Any]:
    """The configuration file as plain objects."""
    only_default = {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "leaderElection": {
            "resourceLock": "leases",
            "resourceName": COMPONENT,
            "resourceNamespace": KOORDINATOR_NAMESPACE,
        },
        "healthzBindAddress": OFF,
        "metricsBindAddress": OFF,
        "deschedulingInterval": "120s",
        "dryRun": False,
        "profiles": [
            {
                "name": COMPONENT,
                "plugins": {
                    "deschedule": {"disabled": [{"name": "*"}]},
                    "balance": {"disabled": [{"name": "*"}]},
                    "evict": only_default,
                    "filter": only_default,
                },
                "pluginConfig": [
                    _args(
                        "LowNodeLoad",
                        evictableNamespaces={"exclude": ["kube-system", KOORDINATOR_NAMESPACE]},
                        lowThresholds={"cpu": 45, "memory": 55},
                        highThresholds={"cpu": 75, "memory": 80},
                    ),
                ],
            }
        ],
    }
