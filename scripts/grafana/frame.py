"""A Grafana dashboard as data, and its JSON (schema of Grafana 10 and later).

A page lists panels with their queries; places, ids, colours and the rest of the JSON are generated here, so that all
dashboards look alike. Every panel uses the data source of the variable `${datasource}`, so that a dashboard can be
imported unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "koordlet"
HEAT = "continuous-GrYlRd"
SECONDS_PER_SECOND = "si:s/s"
"""Grafana unit of time per time, summed over tasks or containers; `si:`: small values get a prefix (µs/s)."""


@dataclass(frozen=True)
class Query:
    """One PromQL query; `legend` names its series."""

    expr: str
    legend: str = ""
    instant: bool = False
    heatmap: bool = False


@dataclass(frozen=True)
class Panel:
    """`kind`: Grafana's panel type; `description`: its help text and its line in docs/grafana.md."""

    title: str
    description: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    stack: bool = False
    max: float | None = None
    steps: Sequence[tuple[float | None, str]] = ()
    """(lower bound, colour) of thresholds; None: no lower bound."""
    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Value -> (text, colour)."""
    lines: Sequence[str] = ()
    """Legends of series that are drawn as dashed lines above the stack."""
    hide: Sequence[str] = ()
    """Columns that a table hides."""
    columns: Sequence[str] = ()
    """The first columns of a table, in their order."""


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A selector at the top of the page: the values of `label` in `series`."""

    name: str
    label: str
    series: str
    title: str


@dataclass(frozen=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[Row]


def dashboard_json(page: Dashboard) -> dict[str, Any]:
    """The JSON that Grafana imports."""
    return {
        "id": None,
        "uid": page.uid,
        "title": page.title,
        "description": page.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "timepicker": {},
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards", "tags": [TAG], "title": "koordlet", "asDropdown": True, "icon": "external link",
                "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
            }
        ],
        "templating": {"list": [_datasource(), *(_variable(variable) for variable in page.variables)]},
        "panels": list(_placed(page.rows)),
    }  # fmt: skip


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {},
        "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False,
    }  # fmt: skip


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.series}, {variable.label})"
    return {
        "name": variable.name, "label": variable.title, "type": "query", "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2, "sort": 1, "regex": "", "hide": 0, "skipUrlSync": False, "options": [],
        "includeAll": True, "allValue": ".*", "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _placed(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Panels from left to right; a new line begins when the next panel does not fit."""
    number, y = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }  # fmt: skip
        y += 1
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_line(legend) for legend in panel.lines]},
        "options": _OPTIONS[panel.kind],
        "transformations": _transformations(panel),
    }


def _target(panel: Panel, number: int, query: Query) -> dict[str, Any]:
    shape = "heatmap" if query.heatmap else "table" if panel.kind == "table" else "time_series"
    return {
        "refId": chr(ord("A") + number), "datasource": DATASOURCE, "editorMode": "code", "expr": query.expr,
        "format": shape, "instant": query.instant, "range": not query.instant, "legendFormat": query.legend or "__auto",
    }  # fmt: skip


def _defaults(panel: Panel) -> dict[str, Any]:
    heat = panel.kind == "status-history" and not panel.words
    colour = {"mode": HEAT} if heat else {"mode": "thresholds" if panel.steps else "palette-classic"}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": colour,
        "mappings": [
            {
                "type": "value",
                "options": {
                    value: {"index": number, "text": text, "color": colour}
                    for number, (value, (text, colour)) in enumerate(panel.words.items())
                },
            }
        ]
        if panel.words
        else [],
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.steps or ((None, "green"),)],
        },
        "custom": {},
    }
    if panel.max is not None:
        defaults["max"] = panel.max
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 60 if panel.stack else 10, "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"}, "spanNulls": False,
        }  # fmt: skip
    elif panel.kind in ("state-timeline", "status-history"):
        defaults["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    return defaults


def _line(legend: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": legend},
        "properties": [
            {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.lineWidth", "value": 2},
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        ],
    }


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    if panel.kind != "table":
        return []
    hidden = dict.fromkeys(("Time", "__name__", "instance", "job", *panel.hide), True)
    order = {name: number for number, name in enumerate(panel.columns)}
    return [{"id": "organize", "options": {"excludeByName": hidden, "indexByName": order, "renameByName": {}}}]


_LEGEND = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["mean", "max"]}
_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "area", "textMode": "auto"},
    "bargauge": {"reduceOptions": _LAST, "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True},
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"]}},
    "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.9, "legend": {"showLegend": True}},
    "status-history": {"showValue": "never", "rowHeight": 0.9, "colWidth": 0.9, "legend": {"showLegend": False}},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "tooltip": {"show": True, "yHistogram": False},
        "legend": {"show": True},
    },
}
