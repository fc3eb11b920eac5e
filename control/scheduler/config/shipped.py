"""The configuration that koord-scheduler is deployed with (spec 05 §2.2)."""

from __future__ import annotations

from typing import Any, Final

from control.scheduler.config.model import API_VERSION, KIND
from koordlet.api.names import KOORDINATOR_NAMESPACE, RESOURCE_GPU_SHARED

SCHEDULER: Final = "koord-scheduler"


def _on(*plugins: str, only: bool = False, weights: dict[str, int] | None = None) -> dict[str, Any]:
    enabled: list[dict[str, Any]] = [
        {"name": name, "weight": weights[name]} if weights and name in weights else {"name": name} for name in plugins
    ]
    return {"disabled": [{"name": "*"}], "enabled": enabled} if only else {"enabled": enabled}


def _args(plugin: str, **values: Any) -> dict[str, Any]:
    return {"name": plugin, "args": {"apiVersion": API_VERSION, "kind": f"{plugin}Args", **values}}


_SCORES: Final = {
    "LoadAwareScheduling": 1,
    "NodeNUMAResource": 1,
    "DeviceShare": 1,
    "Reservation": 5000,
    "Coscheduling": 1,
}
_FIT_RESOURCES: Final = ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")

PLUGINS: Final[dict[str, Any]] = {
    "queueSort": _on("PrioritySort", only=True),
    "preEnqueue": _on("Coscheduling"),
    "preFilter": _on(
        "SchedulingHint", "Reservation", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"
    ),
    "filter": _on("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
    "postFilter": _on("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption", only=True),
    "preScore": _on("Reservation", "Coscheduling"),
    "score": _on(*_SCORES, weights=_SCORES),
    "reserve": _on(
        "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "ElasticQuota"
    ),
    "permit": _on("Coscheduling"),
    "preBind": _on("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    "bind": _on("Reservation", "DefaultBinder", only=True),
    "postBind": _on("Coscheduling"),
}


def configuration() -> dict[str, Any]:
    """The configuration file as plain objects."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",
            "resourceName": SCHEDULER,
            "resourceNamespace": KOORDINATOR_NAMESPACE,
        },
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "pluginConfig": [
                    _args(
                        "NodeResourcesFit",
                        # The webhook adds it to pods, and nodes publish it only with a gate. DeviceShare reads it.
                        ignoredResources=[RESOURCE_GPU_SHARED],
                        scoringStrategy={
                            "type": "LeastAllocated",
                            "resources": [{"name": name, "weight": 1} for name in _FIT_RESOURCES],
                        },
                    ),
                    _args(
                        "LoadAwareScheduling",
                        filterExpiredNodeMetrics=False,
                        nodeMetricExpirationSeconds=300,
                        resourceWeights={"cpu": 1, "memory": 1},
                        usageThresholds={"cpu": 0, "memory": 0},
                        estimatedScalingFactors={"cpu": 85, "memory": 70},
                    ),
                    _args("ElasticQuota", quotaGroupNamespace=KOORDINATOR_NAMESPACE),
                ],
                "plugins": PLUGINS,
            }
        ],
    }
