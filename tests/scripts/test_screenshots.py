"""Pictures of the dashboards: data, units, and what each kind of panel draws."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.screenshots.draw import COLOURS, buckets, drawn, threshold
from scripts.screenshots.page import first_rows, height_of, page_html
from scripts.screenshots.panels import RATE_INTERVAL_S, FilledPanel, Interval, Named, filled, legend, substituted
from scripts.screenshots.prometheus import Series, series
from scripts.screenshots.reasons import REASONS
from scripts.screenshots.record import JOBS, LOADS, placed_loads
from scripts.screenshots.units import formatted, ticks

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
INTERVAL = Interval(1000.0, 1100.0, 5.0)


class FakeSource:
    """Answers each query with the same series, at the times that were asked for."""

    def __init__(self, *answers: dict[str, str], value: float = 1.0) -> None:
        self.asked: list[str] = []
        self._answers, self._value = answers, value

    def range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        self.asked.append(expr)
        times = [start + number * step for number in range(int((end - start) / step) + 1)]
        return [Series(labels, [(at, self._value) for at in times]) for labels in self._answers]

    def instant(self, expr: str, at: float) -> list[Series]:
        self.asked.append(expr)
        return [Series(labels, [(at, self._value)]) for labels in self._answers]


def panel(kind: str, *values: float, **defaults: Any) -> FilledPanel:
    data = [
        Named(f"<{number}>", Series({"le": str(number), "a": "<x>"}, [(1000.0, value), (1005.0, value)]))
        for number, value in enumerate(values)
    ]
    spec = {
        "type": kind,
        "title": "t",
        "fieldConfig": {
            "defaults": {
                "unit": "short",
                "color": {"mode": "thresholds"},
                "thresholds": {"steps": [{"value": None, "color": "green"}, {"value": 2, "color": "red"}]},
                "custom": {"stacking": {"mode": "none"}},
                "mappings": [{"options": {"1": {"text": "up", "color": "green"}}}],
                **defaults,
            },
            "overrides": [],
        },
        "transformations": [{"options": {"excludeByName": {"le": True}, "indexByName": {}}}],
    }
    return FilledPanel(spec, data)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "short", "0"),
        (1234, "short", "1.23 k"),
        (0.5, "none", "0.5"),
        (0.123456, "percentunit", "12.3%"),
        (55, "percent", "55%"),
        (3 * 2**30, "bytes", "3 GiB"),
        (1500, "Bps", "1.5 kB/s"),
        (0.0021, "s", "2.1 ms"),
        (90, "s", "1.5 min"),
        (12, "ms", "12 ms"),
        (2, "cps", "2 c/s"),
        (0.0000055, "si:s/s", "5.5 µs/s"),
        (1.79, "si:s/s", "1.79 s/s"),
        (0, "si:s/s", "0"),
    ],
)
def test_values_have_their_unit(value: float, unit: str, expected: str) -> None:
    assert formatted(value, unit) == expected


def test_an_unknown_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="furlong"):
        formatted(1, "furlong")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_unit_and_kind_of_the_dashboards_is_drawn(path: Path) -> None:
    """With data in each panel, the whole page is drawn."""
    source = FakeSource({"le": "0.5", "node": "<n>"}, {"le": "+Inf", "node": "m"})
    page = json.loads(path.read_text())
    panels, missing = filled(page, source, INTERVAL, {})
    assert not missing
    html = page_html(page["title"], page["description"], panels, INTERVAL)
    assert html.count('class="panel"') == len([named for named in panels if named.kind != "row"])
    assert "not drawn by Grafana" in html
    assert "<n>" not in html, "labels are escaped"
    assert height_of(panels) > 500
    assert len(source.asked) == sum(len(named.get("targets", ())) for named in page["panels"])
    assert not [expr for expr in source.asked if "$" in expr]


def test_the_first_rows_end_before_the_next_one() -> None:
    kinds = ["row", "stat", "row", "stat", "stat", "row"]
    panels = [FilledPanel({"type": kind, "title": str(number)}, []) for number, kind in enumerate(kinds)]
    assert [named.title for named in first_rows(panels, 2)] == ["0", "1", "2", "3", "4"]
    assert len(first_rows(panels, 9)) == len(panels)


def test_a_panel_without_data_has_a_reason_or_is_reported() -> None:
    spec = {"type": "stat", "title": "gpu", "targets": [
        {"expr": "sum(koordlet_gpu_healthy)", "instant": False, "legendFormat": ""}]}  # fmt: skip
    page = {"templating": {"list": []}, "panels": [spec]}
    panels, missing = filled(page, FakeSource(), INTERVAL, {"koordlet_gpu_": "no GPU"})
    assert (panels[0].reason, missing) == ("no GPU", [])
    assert "No data: no GPU" in drawn(panels[0], 300, 100, INTERVAL)
    _, missing = filled(page, FakeSource(), INTERVAL, {"other": "no GPU"})
    assert missing == ["the panel 'gpu' has no data"]


def test_every_reason_is_used_by_a_dashboard() -> None:
    text = "\n".join(
        " ".join(target["expr"] for target in named.get("targets", ()))
        for path in DASHBOARDS
        for named in json.loads(path.read_text())["panels"]
    )
    assert [metric for metric in REASONS if not re.search(rf"\b{metric}", text)] == []


def test_variables_are_all_and_an_unknown_one_is_an_error() -> None:
    assert substituted('rate(a{node=~"$node"}[$__rate_interval])', ["node"]) == (
        f'rate(a{{node=~".*"}}[{RATE_INTERVAL_S}s])'
    )
    with pytest.raises(ValueError, match="unknown variable"):
        substituted('a{x="$x"}', ["node"])


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("{{a}} b {{ c }}", {"a": "1", "c": "2"}, "1 b 2"),
        ("{{a}} {{gone}}", {"a": "1"}, "1"),
        ("__auto", {"__name__": "m", "b": "2", "a": "1"}, 'm{a="1", b="2"}'),
        ("__auto", {}, ""),
    ],
)
def test_legends(text: str, labels: dict[str, str], expected: str) -> None:
    assert legend(text, labels) == expected


def test_answers_of_both_kinds_lose_values_that_are_no_numbers() -> None:
    assert series({"metric": {"a": "b"}, "values": [[1, "2"], [2, "NaN"], [3, "+Inf"]]}).points == [(1.0, 2.0)]
    assert series({"metric": {}, "value": [1, "2"]}).points == [(1.0, 2.0)]


def test_buckets_are_no_longer_cumulative() -> None:
    data = [
        Named("", Series({"le": bound}, [(1.0, count)])) for bound, count in (("+Inf", 9.0), ("0.1", 2.0), ("1", 7.0))
    ]
    assert buckets(data) == [(0.1, {1.0: 2.0}), (1.0, {1.0: 5.0}), (float("inf"), {1.0: 2.0})]


@pytest.mark.parametrize(("value", "expected"), [(0, "green"), (1.9, "green"), (2, "red"), (5, "red")])
def test_thresholds(value: float, expected: str) -> None:
    assert threshold(panel("stat", value), value) == COLOURS[expected]


def test_a_stacked_series_is_drawn_above_the_others() -> None:
    """Both have the value 2: the upper one reaches 4, so the axis does, too."""
    stacked = drawn(panel("timeseries", 2.0, 2.0, custom={"stacking": {"mode": "normal"}}), 600, 300, INTERVAL)
    side_by_side = drawn(panel("timeseries", 2.0, 2.0), 600, 300, INTERVAL)
    assert ">4<" in stacked
    assert ">4<" not in side_by_side


def test_a_gap_interrupts_the_line() -> None:
    named = panel("timeseries", 1.0)
    named.data[0].series.points.append((1050.0, 1.0))
    assert drawn(named, 600, 300, INTERVAL).count("<polyline") == 2


def test_a_table_shows_what_is_not_hidden_and_counts_the_rest() -> None:
    html = drawn(panel("table", 1.0, 2.0, 3.0, 4.0), 600, 70, INTERVAL)
    assert "<th>a</th>" in html
    assert "<th>le</th>" not in html
    assert "and 3 more" in html


@pytest.mark.parametrize(
    ("largest", "unit", "expected"),
    [(1.0, "short", [0, 0.25, 0.5, 0.75, 1.0]), (3 * 2**30, "bytes", [0, 2**30, 2 * 2**30, 3 * 2**30])],
)
def test_ticks_are_round(largest: float, unit: str, expected: list[float]) -> None:
    assert ticks(largest, unit) == pytest.approx(expected)


def test_loads_without_a_scheduler_are_on_the_node() -> None:
    pods = [obj for obj in placed_loads("n1") if obj["kind"] == "Pod"]
    assert {obj["metadata"]["name"] for obj in pods if obj["spec"].get("nodeName") == "n1"} == {
        obj["metadata"]["name"] for obj in pods if "schedulerName" not in obj["spec"]
    }
    assert len(pods) < len(list(yaml.safe_load_all(LOADS.read_text())))


def test_jobs_have_the_names_that_dashboards_and_rules_use() -> None:
    files = [*DASHBOARDS, *(ROOT / "deploy/prometheus").glob("*.yaml")]
    used = {name for path in files for name in re.findall(r'job=\\?"([\w-]+)\\?"', path.read_text())}
    assert used <= JOBS.keys()
