"""The inside of one panel as HTML with SVG, by kind of panel.

Pure: data in, text out. The layout follows Grafana's: legends as tables with mean and maximum, thresholds as colours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape

from scripts.screenshots.panels import FilledPanel, Interval, Named
from scripts.screenshots.units import formatted, ticks

PALETTE = ("#3f8f3a", "#d9a400", "#3274d9", "#e0752d", "#8f5ac4", "#c4162a", "#1f8a8a", "#a05a2c", "#6f7f1f", "#5b6570")
COLOURS = {"green": "#3f8f3a", "yellow": "#e0b400", "orange": "#e0752d", "blue": "#3274d9", "red": "#c4162a"}
LEGEND_ROW_PX, TICK_PX, LEFT_PX = 15, 18, 66
NAME_SHARE, LETTER_PX = 0.38, 6.3
"""Of the width for the names beside cells, and the width of a letter."""
AXIS = "#d8dade"
TIME_PX = 120
"""Distance of the times below a plot."""
_HEAT_STEPS = ("#3f8f3a", "#8aa82f", "#d9b400", "#e0752d", "#c4162a")
_ORANGES = ("#fff1e0", "#fdd9b0", "#fdb97d", "#f98f47", "#e5661c", "#b84203")


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def threshold(panel: FilledPanel, value: float) -> str:
    """The colour of the last step that is not above the value."""
    steps = panel.defaults["thresholds"]["steps"]
    name = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
    return COLOURS[name]


def drawn(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    """The HTML of a panel's content."""
    if panel.reason:
        return f'<div class="reason">No data: {escape(panel.reason)}</div>'
    return _KINDS[panel.kind](panel, width, height, interval)


def _svg(width: float, height: float, content: str) -> str:
    return f'<svg width="{width:.0f}" height="{height:.0f}">{content}</svg>'


def _text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}" fill="{fill}"/>'
    )


class _Scale:
    """Times and values to pixels, with the axes' lines and texts."""

    def __init__(self, width: int, height: int, interval: Interval, left: int, largest: float = 1.0) -> None:
        self.left, self.right, self.bottom = left, width - 12, height - TICK_PX
        self.interval, self.largest = interval, largest

    def x(self, at: float) -> float:
        share = (at - self.interval.start) / (self.interval.end - self.interval.start)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value / self.largest * (self.bottom - 8)

    def times(self) -> str:
        texts, count = [], max(int((self.right - self.left) // TIME_PX), 1)
        for number in range(count):
            at = self.interval.start + (number + 0.5) * (self.interval.end - self.interval.start) / count
            clock = time.strftime("%H:%M:%S", time.gmtime(at))
            texts.append(_text(self.x(at), self.bottom + TICK_PX - 5, clock, "middle"))
        return "".join(texts)

    def values(self, marks: Sequence[float], unit: str) -> str:
        return "".join(
            f'<path d="M{self.left} {self.y(mark):.1f}H{self.right}" stroke="{AXIS}"/>'
            + _text(self.left - 5, self.y(mark) + 4, formatted(mark, unit), "end")
            for mark in marks
        )


def _legend(data: Sequence[Named], unit: str, rows: int) -> str:
    """One row for each series, by size; the rest as a number."""
    order = sorted(range(len(data)), key=lambda number: -data[number].largest)
    shown = order if len(order) <= rows else order[: max(rows - 1, 1)]
    lines = [
        f'<tr><td class="name"><i style="background:{colour(number)}"></i>{escape(data[number].name)}</td>'
        f"<td>{formatted(data[number].mean, unit)}</td><td>{formatted(data[number].largest, unit)}</td></tr>"
        for number in shown
    ]
    if len(shown) < len(order):
        lines.append(f'<tr><td class="name">and {len(order) - len(shown)} more</td><td></td><td></td></tr>')
    return f'<table class="legend"><tr><th></th><th>mean</th><th>max</th></tr>{"".join(lines)}</table>'


def _time_series(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    unit = panel.defaults["unit"]
    stacked = panel.defaults["custom"]["stacking"]["mode"] == "normal"
    dashed = {override["matcher"]["options"] for override in panel.spec["fieldConfig"]["overrides"]}
    rows = min(len(panel.data), max((height - 110) // LEGEND_ROW_PX - 1, 1))
    plot_height = height - (rows + 1) * LEGEND_ROW_PX - 4
    below: dict[float, float] = {}
    bands: list[tuple[int, list[tuple[float, float, float]]]] = []
    for number, named in enumerate(panel.data):
        stack = stacked and named.name not in dashed
        band = []
        for at, value in named.series.points:
            lower = below.get(at, 0.0) if stack else 0.0
            band.append((at, lower, lower + value))
            if stack:
                below[at] = lower + value
        bands.append((number, band))
    largest = max(upper for _, band in bands for _, _, upper in band)
    marks = ticks(largest if largest > 0 else 1.0, unit)
    scale = _Scale(width, plot_height, interval, LEFT_PX, marks[-1])
    content = scale.values(marks, unit) + scale.times()
    for number, band in bands:
        name = panel.data[number].name
        for part in _unbroken(band, interval.step):
            line = " ".join(f"{scale.x(at):.1f},{scale.y(value):.1f}" for at, _, value in part)
            under = " ".join(f"{scale.x(at):.1f},{scale.y(value):.1f}" for at, value, _ in reversed(part))
            opacity = 0.0 if name in dashed else 0.5 if stacked else 0.08
            content += f'<polygon points="{line} {under}" fill="{colour(number)}" fill-opacity="{opacity}"/>'
            dash = ' stroke-dasharray="8 6"' if name in dashed else ""
            content += f'<polyline points="{line}" fill="none" stroke="{colour(number)}" stroke-width="1.5"{dash}/>'
    return _svg(width, plot_height, content) + _legend(panel.data, unit, rows)


def _unbroken(band: Sequence[tuple[float, float, float]], step: float) -> list[list[tuple[float, float, float]]]:
    """Parts without a gap: Grafana draws no line over one."""
    parts: list[list[tuple[float, float, float]]] = []
    for point in band:
        if parts and point[0] - parts[-1][-1][0] <= step * 1.5:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def _stat(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    """The last value of each series above the course of its values."""
    unit, each, content = panel.defaults["unit"], width / len(panel.data), ""
    for number, named in enumerate(panel.data):
        steps = panel.defaults["color"]["mode"] == "thresholds"
        paint = threshold(panel, named.last) if steps else colour(number)
        size = min(38.0, each / 4.5, height / 2.2)
        left, name = number * each, named.name if len(panel.data) > 1 else ""
        scale = _Scale(int(each), height + TICK_PX, interval, 0, max(named.largest * 2.5, 1e-12))
        points = " ".join(f"{left + scale.x(at):.1f},{scale.y(value):.1f}" for at, value in named.series.points)
        first, last = (left + scale.x(named.series.points[end][0]) for end in (0, -1))
        content += (
            f'<polygon points="{first:.1f},{height} {points} {last:.1f},{height}" fill="{paint}" fill-opacity="0.15"/>'
        )
        content += _text(left + each / 2, 14, name[: int(each / LETTER_PX)], "middle")
        style = f'style="font-size:{size:.0f}px;font-weight:500;fill:{paint}"'
        content += _text(left + each / 2, height / 2 + size / 3, formatted(named.last, unit), "middle", style)
    return _svg(width, height, content)


def _bar_gauge(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    largest = panel.defaults.get("max") or max(named.largest for named in panel.data) or 1.0
    each, content = min(height / len(panel.data), 46), ""
    for number, named in enumerate(panel.data):
        y, room = number * each, width - 140 - 80
        content += _text(128, y + each / 2 + 4, named.name, "end") + _rect(140, y + 4, room, each - 8, "#eceef1")
        content += _rect(140, y + 4, room * min(named.last / largest, 1.0), each - 8, colour(number))
        content += _text(width - 70, y + each / 2 + 4, formatted(named.last, panel.defaults["unit"]))
    return _svg(width, height, content)


def _table(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    options = panel.spec["transformations"][0]["options"]
    hidden, first = options["excludeByName"], options["indexByName"]
    names = {name for named in panel.data for name in named.series.labels if name not in hidden}
    columns = sorted(names, key=lambda name: (first.get(name, len(first)), name))
    shown = [] if "Value" in hidden else ["Value"]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns + shown)
    room, lines = max(height // 21 - 1, 1), []
    order = sorted(panel.data, key=lambda named: -named.last)
    cut = order if len(order) <= room else order[: room - 1]
    for named in cut:
        cells = [escape(named.series.labels.get(name, "")) for name in columns]
        cells += [formatted(named.last, panel.defaults["unit"])] * len(shown)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    rest = f'<div class="rest">and {len(order) - len(cut)} more</div>' if len(cut) < len(order) else ""
    return f'<table class="cells"><tr>{head}</tr>{"".join(lines)}</table>{rest}'


def _bands(
    panel: FilledPanel, width: int, height: int, interval: Interval, fill: Callable[[float], str], key: str
) -> str:
    """A row of coloured cells for each series."""
    left = int(min(max(len(named.name) for named in panel.data) * LETTER_PX + 10, width * NAME_SHARE))
    scale = _Scale(width, height - 16, interval, left)
    room = max(int(scale.bottom // 14), 1)
    shown = panel.data if len(panel.data) <= room else panel.data[: room - 1]
    each = min(scale.bottom / max(len(shown), 1), 26)
    cell = scale.x(interval.start + interval.step) - scale.x(interval.start)
    content = scale.times()
    for number, named in enumerate(shown):
        content += _text(left - 6, number * each + each / 2 + 4, _end(named.name, left), "end")
        for at, value in named.series.points:
            content += _rect(scale.x(at) - cell, number * each + 1, cell + 1, each - 2, fill(value))
    more = f"and {len(panel.data) - len(shown)} more" if len(shown) < len(panel.data) else ""
    return _svg(width, height - 16, content) + f'<div class="rest">{key}{more}</div>'


def _end(name: str, width: float) -> str:
    letters = int(width / LETTER_PX)
    return name if len(name) <= letters else f"…{name[1 - letters :]}"


def _state_timeline(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    words = panel.defaults["mappings"][0]["options"]
    key = "".join(
        f'<span><i style="background:{COLOURS[word["color"]]}"></i>{escape(word["text"])}</span>'
        for word in words.values()
    )

    def fill(value: float) -> str:
        return COLOURS[words[f"{value:g}"]["color"]]

    return _bands(panel, width, height, interval, fill, key)


def _status_history(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    largest = panel.defaults.get("max") or max(named.largest for named in panel.data) or 1.0

    def fill(value: float) -> str:
        return _HEAT_STEPS[min(int(value / largest * len(_HEAT_STEPS)), len(_HEAT_STEPS) - 1)]

    unit = panel.defaults["unit"]
    key = f"green: 0 · red: {formatted(largest, unit)} "
    return _bands(panel, width, height, interval, fill, key)


def buckets(data: Sequence[Named]) -> list[tuple[float, dict[float, float]]]:
    """(upper bound, time -> observations in the bucket), from cumulative buckets, in order of their bounds."""
    ordered = sorted((float(named.series.labels["le"]), dict(named.series.points)) for named in data)
    out, below = [], dict[float, float]()
    for bound, counts in ordered:
        out.append((bound, {at: max(count - below.get(at, 0.0), 0.0) for at, count in counts.items()}))
        below = counts
    return out


def _heatmap(panel: FilledPanel, width: int, height: int, interval: Interval) -> str:
    rows = [(bound, counts) for bound, counts in buckets(panel.data) if any(counts.values())]
    largest = max((count for _, counts in rows for count in counts.values()), default=0.0)
    if not largest:
        return '<div class="reason">No observation in the interval</div>'
    scale = _Scale(width, height - 16, interval, LEFT_PX)
    each = scale.bottom / len(rows)
    cell = scale.x(interval.start + interval.step) - scale.x(interval.start)
    content = scale.times()
    for number, (bound, counts) in enumerate(rows):
        y = scale.bottom - (number + 1) * each
        content += _text(LEFT_PX - 5, y + each / 2 + 4, "more" if math.isinf(bound) else formatted(bound, "s"), "end")
        for at, count in counts.items():
            if count:
                step = min(int(math.log1p(count) / math.log1p(largest) * len(_ORANGES)), len(_ORANGES) - 1)
                content += _rect(scale.x(at) - cell, y, cell + 1, each - 1, _ORANGES[step])
    key = f"darkest: {formatted(largest, 'short')} observations in {interval.step:g} s steps, on a logarithmic scale"
    return _svg(width, height - 16, content) + f'<div class="rest">{key}</div>'


_KINDS: dict[str, Callable[[FilledPanel, int, int, Interval], str]] = {
    "timeseries": _time_series,
    "stat": _stat,
    "bargauge": _bar_gauge,
    "table": _table,
    "state-timeline": _state_timeline,
    "status-history": _status_history,
    "heatmap": _heatmap,
}
