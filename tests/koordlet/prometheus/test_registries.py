"""Scrape output: names, the node label, providers that fail."""

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from koordlet.prometheus import CATALOGUE, Registries
from koordlet.prometheus.family import Family


def scraped(registry: CollectorRegistry) -> dict[str, list[Any]]:
    text = generate_latest(registry).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_nothing_with_a_node_label_before_the_node_is_known() -> None:
    registries = Registries()
    registries.view("node_used_cpu_cores", lambda: [((), 1.5)])
    assert "koordlet_node_used_cpu_cores" not in scraped(registries.internal)
    registries.node = "n1"
    sample = scraped(registries.internal)["koordlet_node_used_cpu_cores"][0]
    assert (sample.labels, sample.value) == ({"node": "n1"}, 1.5)


def test_a_removed_subject_has_no_samples() -> None:
    registries, rows = Registries(), [(("BE",), 2.0), (("LS",), 3.0)]
    registries.node = "n1"
    registries.view("qos_cpu_usage_cores", lambda: rows)
    assert len(scraped(registries.external)["koordlet_qos_cpu_usage_cores"]) == 2
    del rows[0]
    assert [s.labels["qos"] for s in scraped(registries.external)["koordlet_qos_cpu_usage_cores"]] == ["LS"]


def test_a_failing_provider_omits_only_its_family() -> None:
    registries = Registries()
    registries.node = "n1"

    def broken() -> None:
        raise RuntimeError("no such file")

    registries.view("node_used_cpu_cores", broken)  # type: ignore[arg-type]
    registries.view("node_used_memory_bytes", lambda: [((), 7)])
    families = scraped(registries.internal)
    assert "koordlet_node_used_cpu_cores" not in families
    assert families["koordlet_node_used_memory_bytes"][0].value == 7
    failures = scraped(registries.internal)["koordlet_metric_provider_failures"]
    assert next(s.value for s in failures if s.labels == {"family": "node_used_cpu_cores"}) >= 1


def test_histogram_rows_are_cumulative_with_sum_and_count() -> None:
    registries = Registries()
    registries.node = "n1"
    labels = ("u", "p", "ns", "c", "main", "LS", "wakeup")
    registries.view("sched_latency_seconds", lambda: [(labels, [3, 4], 0.5)], ("0.001", "+Inf"))
    samples = {
        (s.name.rsplit("_", 1)[1], s.labels.get("le")): s.value
        for s in scraped(registries.external)["koordlet_sched_latency_seconds"]
    }
    assert samples == {("bucket", "0.001"): 3, ("bucket", "+Inf"): 4, ("count", None): 4, ("sum", None): 0.5}


def test_counters_keep_koordinators_names() -> None:
    registries = Registries()
    registries.node = "n1"
    registries.count("collect_node_cpu_info_status", "failed")
    registries.count("collect_node_cpu_info_status", "failed")
    registries.count("metric_cache_lost_samples_total", by=3)
    text = generate_latest(registries.internal).decode()
    assert 'koordlet_collect_node_cpu_info_status{node="n1",status="failed"} 2.0' in text
    assert 'koordlet_metric_cache_lost_samples_total{node="n1"} 3.0' in text


def test_a_family_outside_the_catalogue_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        Registries().view("invented", list)


@pytest.mark.parametrize("family", CATALOGUE.values(), ids=list(CATALOGUE))
def test_catalogue_rows_are_complete(family: Family) -> None:
    assert family.help.endswith(".")
    assert len(set(family.all_labels)) == len(family.all_labels)
    koordinators = family.name.startswith(("collect_node_", "pod_eviction", "core_sched"))  # without the suffix
    assert (family.type == "counter") <= (family.name.endswith("_total") or koordinators)
