"""Every query of the scheduler's dashboard and alerts, executed by a real Prometheus over a real koord-scheduler.

A query must be understood, and must have data. Meanwhile pods come and go, and one finds no room.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.scraping import Prometheus, queries

pytestmark = pytest.mark.runtime

ROOT = Path(__file__).resolve().parents[4]
DASHBOARD = ROOT / "deploy/grafana/koord-scheduler.json"
RULES = ROOT / "deploy/prometheus/koord-scheduler.rules.yaml"
VARIABLES = {"$__rate_interval": "1m", "$profile": ".*"}


async def _churn(world: Any, number: int) -> None:
    """Some pods that fit, and none of the last round's."""
    for at in range(10):
        await world.pod(f"p{number}-{at}", cpu="10m")
    if number:
        for at in range(10):
            await world.delete_pod(f"p{number - 1}-{at}")


async def test_every_query_has_data_and_every_rule_is_evaluated(world: Any, scheduler: Any, tmp_path: Path) -> None:
    await world.node("n1", cpu="2")
    await world.node("n2", cpu="2")
    running = await scheduler()
    await world.pod("big", cpu="9")
    quotas = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
    quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "q"}}
    await world.admin.raw("POST", quotas, body={**quota, "spec": {"max": {"cpu": "1"}}})
    await world.pod("counted", cpu="10m", labels={"quota.scheduling.koordinator.sh/name": "q"})
    reserving = [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": reserving}}
    reservation = {"template": template, "owners": [{"labelSelector": {"matchLabels": {"app": "reserved"}}}]}
    await world.admin.raw(
        "POST",
        "/apis/scheduling.koordinator.sh/v1alpha1/reservations",
        body={
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": "r"},
            "spec": {**reservation, "ttl": "1h"},
        },
    )
    numbers = itertools.count()

    async def churn() -> None:
        await _churn(world, next(numbers))
        await asyncio.sleep(0.5)  # a round a scrape or so, not fifty

    async with Prometheus("koord-scheduler", running.port, "/metrics", RULES, free_port(), tmp_path) as prometheus:
        await prometheus.wait_for_data(queries(DASHBOARD, VARIABLES), churn)
        assert await prometheus.firing_alerts() == set()
