"""docs/metrics.md says what the catalogue says, and of the families of every binary what their makers say."""

from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from koordlet.app.periodic import TaskMetrics
from koordlet.kube.metrics import ClientMetrics, EventMetrics, InformerMetrics
from koordlet.prometheus.catalogue import FAMILIES
from koordlet.prometheus.registries import Registries

PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def told(*prefixes: str) -> dict[str, list[str]]:
    """Type, labels, unit and meaning by name."""
    return {
        cells[1].strip("`"): cells[2:6]
        for line in PAGE.read_text().splitlines()
        if line.startswith(tuple(f"| `{prefix}" for prefix in prefixes))
        and (cells := [cell.strip() for cell in line.split("|")])
    }


def test_the_page_and_the_catalogue_agree() -> None:
    rows = {name: cells[:3] for name, cells in told("koordlet_").items()}
    own = Registries()._provider_failures
    rows.pop(f"{own._name}_total")
    expected = {f.full_name: [f.type, ", ".join(f.all_labels) or "–", f.unit or "–"] for f in FAMILIES}
    assert rows == expected


def unit(name: str) -> str:
    plain = name.removesuffix("_total")
    return next((word for word in ("seconds", "bytes") if plain.endswith(f"_{word}")), "–")


def test_the_page_lists_the_process_metrics() -> None:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    expected = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        expected[name] = [family.type, ", ".join(family.samples[0].labels) or "–", unit(name)]
    assert {name: cells[:3] for name, cells in told("process_", "python_").items()} == expected


def test_the_page_lists_metrics_of_tasks_and_api_access() -> None:
    sets = [
        metric_set.of(CollectorRegistry()) for metric_set in (TaskMetrics, ClientMetrics, InformerMetrics, EventMetrics)
    ]
    expected = {}
    for metric in [
        *(metric for metric_set in sets for metric in vars(metric_set).values()),
        Registries()._provider_failures,
    ]:
        name = f"{metric._name}_total" if metric._type == "counter" else metric._name
        expected[name] = [metric._type, ", ".join(metric._labelnames) or "–", unit(name), metric._documentation]
    assert told("koord_", "koordlet_metric_provider_failures") == expected
