"""Writes docs/metrics-components.md from the metric sets of the programs: `make configuration`.

koordlet's own families are in docs/metrics.md. Families that a collector computes at the scrape are on the pages of
their components.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Counter

from control.descheduler.drain.metrics import DrainMetrics
from control.descheduler.framework.metrics import DeschedulerMetrics
from control.descheduler.migration.metrics import MigrationMetrics
from control.manager.colocationprofile.controller import ProfileMetrics
from control.manager.config import ConfigMetrics
from control.manager.controller import ControllerMetrics
from control.manager.metrics import ManagerMetrics
from control.manager.noderesource.metrics import NodeResourceMetrics
from control.manager.peers.metrics import PeerMetrics
from control.manager.queueing.metrics import QueueingMetrics
from control.manager.quota.evaluation import EvaluationMetrics
from control.manager.recommender.metrics import RecommenderMetrics
from control.manager.webhookserver.metrics import ServerMetrics, WebhookMetrics
from control.manager.webhookserver.rotation import RotationMetrics
from control.scheduler.cycle.batch import BatchMetrics
from control.scheduler.cycle.extenders import ExtenderMetrics
from control.scheduler.explain.controller import ExplanationMetrics
from control.scheduler.plugins.coscheduling.metrics import GangMetrics, PreemptionMetrics
from control.scheduler.plugins.elasticquota.metrics import QuotaMetrics
from control.scheduler.plugins.reservation.selectorindex import SelectorIndexMetrics
from control.scheduler.process.metrics import SchedulerMetrics
from koordlet.app.metrics import MetricDeclaration, MetricSet
from koordlet.app.periodic import TaskMetrics
from koordlet.kube.metrics import ClientMetrics, EventMetrics, InformerMetrics, LeaderMetrics, QueueMetrics
from runtimeproxy.metrics import ProxyMetrics
from scripts.securitytables import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics-components.md"
HEAD = """# Metrics of the other components

Written by `make configuration` from the programs' own data; a test compares it with them. koordlet's are in
[metrics.md](metrics.md). Families whose values a component computes at the scrape are on its page:
[scheduler](scheduler.md#metrics), [overcommitted resources](noderesource.md). The unit is part of the name: `_seconds`,
`_milliseconds`, `_bytes`; a name without one counts.
"""
SETS: dict[str, tuple[type[MetricSet], ...]] = {
    "Every component that uses the API server": (
        ClientMetrics, InformerMetrics, QueueMetrics, EventMetrics, LeaderMetrics, TaskMetrics,
    ),
    "koord-manager": (
        ManagerMetrics, ControllerMetrics, ConfigMetrics, NodeResourceMetrics, ProfileMetrics, EvaluationMetrics,
        PeerMetrics, QueueingMetrics, RecommenderMetrics, WebhookMetrics, ServerMetrics, RotationMetrics,
    ),
    "koord-scheduler": (
        SchedulerMetrics, BatchMetrics, ExtenderMetrics, ExplanationMetrics, GangMetrics, PreemptionMetrics,
        QuotaMetrics, SelectorIndexMetrics,
    ),
    "koord-descheduler": (DeschedulerMetrics, MigrationMetrics, DrainMetrics),
    "koord-runtime-proxy": (ProxyMetrics,),
}  # fmt: skip


def rows(sets: tuple[type[MetricSet], ...]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, labels and meaning, sorted by name."""
    for declared in sorted(
        (metric for of in sets for metric in vars(of).values() if isinstance(metric, MetricDeclaration)),
        key=lambda metric: metric.name,
    ):
        suffix = "_total" if declared.type is Counter and not declared.name.endswith("_total") else ""
        kind = "counter" if issubclass(declared.type, Counter) else declared.type.__name__.lower()
        yield f"`{declared.name}{suffix}`", kind, ", ".join(declared.labels) or "–", declared.text.replace("|", "\\|")


def page() -> str:
    sections = [
        f"## {component}\n\n" + table(("name", "type", "labels", "meaning"), rows(sets))
        for component, sets in SETS.items()
    ]
    return "\n".join([HEAD, *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
