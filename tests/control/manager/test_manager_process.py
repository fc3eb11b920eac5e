"""The whole process in a real API server: objects follow nodes and configuration, webhooks are trusted."""

from __future__ import annotations

from typing import Any

SLO, METRIC = "nodeslos", "nodemetrics"


async def test_nodes_get_their_objects_and_lose_them(cluster: Any, manager: Any, until: Any) -> None:
    await cluster.nodes("n1", "n2")
    await manager()
    for name in ("n1", "n2"):
        metric = await until(lambda name=name: cluster.spec(METRIC, name))
        assert metric["metricCollectPolicy"]["nodeAggregatePolicy"]["durations"] == ["5m0s", "10m0s", "30m0s"]
        slo = await until(lambda name=name: cluster.spec(SLO, name))
        assert slo["resourceUsedThresholdWithBE"]["enable"] is True  # of the installed ConfigMap
    await cluster.admin.raw("DELETE", "/api/v1/nodes/n1")

    async def gone() -> bool:
        return await cluster.spec(METRIC, "n1") is None and await cluster.spec(SLO, "n1") is None

    await until(gone)
    assert await cluster.spec(SLO, "n2")
