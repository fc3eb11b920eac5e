"""Short ways to write NodeMetrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time

NOW = 1_700_000_000.0


def usage(cpu: str | None = None, memory: str | None = None) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"resources": {key: value for key, value in amounts.items() if value is not None}}


def pod_usage(key: str, cpu: str, memory: str, priority: str = "", **extensions: Any) -> dict[str, Any]:
    namespace, name = key.split("/")
    return {
        "name": name,
        "namespace": namespace,
        "podUsage": usage(cpu, memory),
        "priority": priority,
        **({"extensions": extensions} if extensions else {}),
    }


def metric(
    node: str,
    cpu: str = "0",
    memory: str = "0",
    *,
    at: float | None = NOW,
    interval: int = 60,
    pods: Sequence[Mapping[str, Any]] = (),
    aggregated: Mapping[str, Mapping[str, Any]] | None = None,
    system: tuple[str, str] = ("0", "0"),
    bare: bool = False,
    extensions: Mapping[str, Any] | None = None,
) -> NodeMetric:
    """`aggregated`: duration -> percentile -> usage(); `bare`: without `status.nodeMetric`; `at` None: without time."""
    info = {
        "nodeUsage": usage(cpu, memory),
        "systemUsage": usage(*system),
        "aggregatedNodeUsages": [
            {"duration": duration, "usage": dict(kinds)} for duration, kinds in (aggregated or {}).items()
        ],
    }
    return wire.convert(
        {
            "metadata": {"name": node},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": interval}},
            "status": {
                **({} if at is None else {"updateTime": str(Time.from_unix(at))}),
                **({} if bare else {"nodeMetric": info}),
                "podsMetric": [dict(pod) for pod in pods],
                **({} if extensions is None else {"extensions": dict(extensions)}),
            },
        },
        NodeMetric,
    )
